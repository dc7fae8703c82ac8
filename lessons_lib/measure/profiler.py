"""Profiling: the memory of a step (lesson 04), and compiled graphs (03).

Memory is counted at torch's allocators.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from lessons_lib.measure import clock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages would land in notebooks

# --- Memory


def peak_bytes(fn: Callable[[], Any], device: Any = "cpu") -> int:
    """Peak memory of one run of fn in bytes, beyond what was allocated before; its result counts too.

    CUDA: the caching allocator's own peak. CPU: the allocations and releases that torch's profiler records, including a
    kernel's temporary buffers (unless they bypass torch's allocator). Other devices raise ValueError.
    """
    kind = str(device).split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"memory is measured on cpu and cuda, not on {device}; run this part on the CPU")
    if kind == "cpu":
        return max(accumulate(_allocations(fn), initial=0))
    clock.sync(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = fn()
    clock.sync(device)
    del result
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Exclude all existing objects from Python's garbage collection, which would scan torch's objects again and again.

    Does nothing if the program has frozen objects itself.
    """
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def _allocations(fn: Callable[[], Any]) -> list[int]:
    """Bytes allocated (positive) and released (negative) while fn runs, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = fn()
    del result
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


# --- Compiled graphs


@dataclass(frozen=True)
class Graphs:
    """Number of captured graphs and of graph breaks (places where the compiler gave up and Python continued)."""

    graphs: int
    breaks: int


def count_graphs(function: Callable[[], Any]) -> Graphs:
    """Count the graphs and graph breaks of `function`, with all earlier compilations discarded.

    Steps that were compiled before compile again later. With torch.compile(..., backend="eager") no machine code is
    generated, so counting takes no longer than capturing.
    """
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    function()
    return Graphs(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
