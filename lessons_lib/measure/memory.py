"""Memory of a callable, as torch's allocators see it: what lives at once (lesson 04), what stays (lesson 10).

And what others do about it: the C library keeps some (`give_back`), Python's collector looks it through (`settled`).
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lessons_lib.measure import clock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages would land in notebooks


def peak_bytes(fn: Callable[[], Any], device: Any = "cpu") -> int:
    """Most bytes that one run of fn held at once beyond what was there before; its result counts too.

    CUDA: the caching allocator's own peak. CPU: the allocations and releases that torch's profiler records, what a
    kernel takes for itself included (unless it goes past torch's allocator). ValueError for other devices; errors of
    fn come through.
    """
    return _on_cuda(fn, device) if _kind(device) == "cuda" else highest(_allocations(fn))


def bytes_left(make: Callable[[], Any], device: Any = "cpu") -> int:
    """Bytes that what `make` gives holds, beyond what was there before. Errors as `peak_bytes`."""
    if _kind(device) == "cpu":
        return sum(_allocations(make))
    clock.sync(device)
    before, made = torch.cuda.memory_allocated(device), make()
    clock.sync(device)
    left = torch.cuda.memory_allocated(device) - before
    del made
    return left


def give_back() -> None:
    """Return freed memory to the system where the C library keeps it: glibc does with pieces below 32 MB, and rounding
    one model after another (lesson 10) leaves gigabytes of them. Nothing where there is no such call."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # other C libraries, macOS, Windows
        pass


@contextmanager
def settled() -> Iterator[None]:
    """Spare all that exists by now Python's garbage collector, which else looks through the objects of torch and its
    like again and again. A program that has frozen something itself is left alone."""
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def _kind(device: Any) -> str:
    kind = str(device).split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"memory is measured on cpu and cuda, not on {device}; run this part on the CPU")
    return kind


def highest(changes: list[int]) -> int:
    """Bytes: the highest sum that a row of changes reaches, [4, 8, -4, 2] -> 12. What was there before stays."""
    now = most = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


def _on_cuda(fn: Callable[[], Any], device: Any) -> int:
    clock.sync(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = fn()
    clock.sync(device)
    del result
    return torch.cuda.max_memory_allocated(device) - before


def _allocations(fn: Callable[[], Any]) -> list[int]:
    """Bytes taken (positive) and given back (negative) while fn runs, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = fn()
    del result
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
