"""The trace of a generation (lesson 01): one record per target forward, and what follows from their counts."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Step:
    """One target forward of one row. Times in seconds; with several rows the forward's time is the batch's."""

    length_before: int  # committed tokens, prompt included
    forwarded: int  # tokens fed: what the cache lacked, the tree, scratch
    proposed: int = 0  # tree nodes
    depth: int = 0
    scratch: int = 0
    accepted: int = 0
    committed: int = 0
    draft_calls: int = 0
    is_prefill: bool = False
    eos_cut: bool = False
    t_propose: float = 0.0
    t_forward: float = 0.0
    t_accept: float = 0.0
    t_commit: float = 0.0
    t_total: float = 0.0


def after_prefill(trace: Sequence[Step]) -> list[Step]:
    """Its steps without those that fed the prompt."""
    return [step for step in trace if not step.is_prefill]


def tokens_per_forward(trace: Sequence[Step]) -> float:
    """tau: tokens committed per verification forward, bonus included, prefill left out. Plain decoding is 1.

    nan for a trace of the prefill alone.
    """
    steps = after_prefill(trace)
    return sum(step.committed for step in steps) / len(steps) if steps else float("nan")


def compression(trace: Sequence[Step]) -> float:
    """CR: generated tokens over all target forwards, prefill included. ZeroDivisionError for an empty trace."""
    return sum(step.committed for step in trace) / len(trace)
