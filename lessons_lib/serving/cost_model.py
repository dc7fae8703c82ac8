"""What a forward costs (lesson 05): seconds as a function of the tokens fed and the keys and values read.

Two ways to such a function: `fit` it to measured forwards, or take it from a data sheet with `analytic`.
Ignored: padding, activations, the logits' copy; keys that part of a prompt reads again count as compute alone.
Source: Williams et al. 2009 (roofline); measure/roofline.py has the formulas of one forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lessons_lib.measure.config import ModelConfig
from lessons_lib.serving.loop import Log
from lessons_lib.serving.scheduler import Plan


class Load(NamedTuple):
    """One forward. prefill_tokens: prompt tokens fed, by `prompts` requests, with so many (query, key) pairs;
    decode_tokens: fed by the others, which read kv_tokens cached tokens (their new ones included)."""

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prompts: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


class Cost(Protocol):
    """A cost model. Anything with this method will do."""

    def seconds(self, load: Load) -> float:
        """How many seconds a forward with this load takes."""


def load_of(plan: Plan, padded: bool = True) -> Load:
    """The load of a plan, before it has run. padded: finished requests that a static batch holds are rows as well."""
    rows = [(fed, seq.prefilling, seq.num_computed_tokens) for seq, fed in plan.rows]
    idle = [(1, False, seq.num_tokens - 1) for seq in plan.idle] if padded else []
    return _total(rows + idle)


def steps(log: Log) -> list[tuple[Load, float]]:
    """(load, seconds) of every iteration of a run that had rows: what `fit` takes. Held rows do not count."""
    ran = [i for i in log.iterations if i.shares]
    return [(_total((s.fed, s.prefill, s.cached) for s in i.shares), i.end - i.start) for i in ran]


def _total(rows: Iterable[tuple[int, bool, int]]) -> Load:
    """The load of rows (tokens fed, whether of a prompt, tokens cached before)."""
    tokens = pairs = prompts = decode = kv = 0
    for fed, prefill, cached in rows:
        if prefill:
            prompts += 1
            tokens += fed
            pairs += fed * cached + fed * (fed + 1) // 2
        else:
            decode += fed
            kv += cached + fed
    return Load(tokens, pairs, prompts, decode, kv)


@dataclass(frozen=True)
class Linear:
    """Seconds = the sum of a price (in seconds) times a count, the counts those of Load.

    step: of every forward; prefill_step, decode_step: of one in which a prompt was fed, or a row decoded. Where those
    run one after the other, each has a price of its own.
    """

    step: float = 0.0
    prefill_step: float = 0.0
    decode_step: float = 0.0
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    prompt: float = 0.0
    decode_token: float = 0.0
    kv_token: float = 0.0

    def seconds(self, load: Load) -> float:
        """Seconds of a forward: the sum."""
        tokens, pairs, prompts, decode, kv = load
        time = self.step
        if prompts:
            time += self.prefill_step + self.prefill_token * tokens + self.prefill_pair * pairs + self.prompt * prompts
        if decode:
            time += self.decode_step + self.decode_token * decode + self.kv_token * kv
        return time


@dataclass(frozen=True)
class Overlapped:
    """Seconds = overhead + max(compute, memory), all in seconds: a device that computes while it reads."""

    compute: Linear
    memory: Linear
    overhead: float = 0.0

    def seconds(self, load: Load) -> float:
        """Seconds of a forward: the longer of both, and the overhead."""
        return self.overhead + max(self.compute.seconds(load), self.memory.seconds(load))


def analytic(
    shape: ModelConfig,
    flop_rate: float,
    bandwidth: float,
    weight_bytes: float = 2,
    overhead: float = 0.0,
) -> Overlapped:
    """The roofline of a model on a device of so many FLOP/s and bytes/s; overhead: seconds added to every forward.

    Keys and values take 2 bytes a number, a weight `weight_bytes`. Logits: one row per prompt and per decoded token.
    ValueError for windowed attention, whose reads depend on lengths.
    """
    if shape.sliding_window is not None:
        raise ValueError(f"{shape.name} has windowed attention, which this model does not know; fit() one instead.")
    layer, head = 2 * shape.layer_weights / flop_rate, 2 * shape.head_weights / flop_rate
    pair = 4 * shape.num_layers * shape.num_heads * shape.head_dim / flop_rate
    compute = Linear(prefill_token=layer, prefill_pair=pair, prompt=head, decode_token=layer + head, kv_token=pair)
    kv = 2 * shape.kv_elements(1) / bandwidth
    memory = Linear(shape.weights * weight_bytes / bandwidth, prefill_token=kv, kv_token=kv)
    return Overlapped(compute, memory, overhead)


TERMS = ("step", "prefill_token", "prefill_pair", "decode_token", "kv_token")


def fit(measured: Sequence[tuple[Load, float]], terms: Sequence[str] = TERMS) -> Linear:
    """Prices, none negative, with the least squares of relative errors over measured (load, seconds): see `steps`.

    ValueError with fewer steps than terms, TypeError for a term that Linear has not.
    """
    if len(measured) < len(terms):
        raise ValueError(f"{len(measured)} steps cannot fix {len(terms)} prices; measure at least as many forwards.")
    one = [Linear(**{term: 1.0}) for term in terms]  # a price of 1 gives the count
    counts = np.array([[price.seconds(work) for price in one] for work, _ in measured])
    prices = _not_negative(counts / np.array([[seconds] for _, seconds in measured]))
    return Linear(**dict(zip(terms, prices.tolist(), strict=True)))


def _not_negative(rows: np.ndarray) -> np.ndarray:
    """x >= 0 that brings rows @ x near 1: least squares, the most negative column left out until none is."""
    scale = np.abs(rows).max(axis=0)
    kept, x = np.flatnonzero(scale), np.zeros(rows.shape[1])
    while len(kept):
        part = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if (part >= 0).all():
            x[kept] = part / scale[kept]
            break
        kept = np.delete(kept, part.argmin())
    return x
