"""Profiling: the time of a step by kernel (lesson 06), its memory (lessons 04, 10), and compiled graphs (03).

torch's profiler reports the time of each operator and compiled kernel itself; its own overhead falls between them. So
the whole step is timed without the profiler, and what the named parts do not cover is "the rest". Memory is counted at
torch's allocators: the peak, and what stays allocated.
"""

from __future__ import annotations

import gc
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from lessons_lib.measure import clock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages would land in notebooks

# --- Time

# Kernel names in a decode step, from torch, MKL, oneDNN and the compiler's templates.
PARTS = {
    "one kernel": r"softmax.*silu|silu.*softmax",  # compiled: a whole layer in one kernel
    "matmuls": r"gemm|matmul|int8pack_mm|::(add|b)?mm$|_linear|gemv|cutlass|nvjet",
    "attention": r"scaled_dot_product|softmax|flash|fmha",
    "launch": r"CompiledFxGraph|Torch-Compiled Region|TorchDynamo|Runtime Wrapper|Pregraph",  # Python around a graph
}


def profile_parts(step: Callable[[], Any], device: Any = "cpu", runs: int = 10) -> dict[str, float]:
    """Split the time of a step into parts, medians over `runs`: {"matmuls": ..., ..., "the rest": ...} seconds.

    Parts without time are left out; the rest is always present. A compiled kernel counts as a whole, with everything
    that the compiler fused into it. The rest: norms, positions, sampling, and launching all of them. For a compiled
    graph the launch part is the Python around it, which the profiler names.
    """
    whole = clock.timed(step, device, repeats=runs).median
    profiles = [grouped(kernel_times(step, device)) for _ in range(runs)]
    found = {name: statistics.median(profile[name] for profile in profiles) for name in PARTS}
    found = {name: seconds for name, seconds in found.items() if seconds}
    return found | {"the rest": max(0.0, whole - sum(found.values()))}


def kernel_times(fn: Callable[[], Any], device: Any = "cpu") -> dict[str, float]:
    """Seconds of each operator or kernel itself in one run of fn, on the device where it runs."""
    from torch.profiler import ProfilerActivity, profile

    on_cpu = str(device) == "cpu"
    with profile(activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA]) as found:
        fn()
        clock.sync(device)
    which = "self_cpu_time_total" if on_cpu else "self_device_time_total"
    return {event.key: getattr(event, which) * 1e-6 for event in found.key_averages()}


def grouped(times: Mapping[str, float]) -> dict[str, float]:
    """Sum kernel times by part: the first whose pattern matches the kernel's name. Kernels of no part are left out.

    >>> grouped({"aten::mm": 2.0, "aten::addmm": 1.0, "aten::add": 5.0})
    {'one kernel': 0.0, 'matmuls': 3.0, 'attention': 0.0, 'launch': 0.0}
    """
    sums = dict.fromkeys(PARTS, 0.0)
    for kernel, seconds in times.items():
        part = next((name for name, pattern in PARTS.items() if re.search(pattern, kernel)), None)
        if part:
            sums[part] += seconds
    return sums


# --- Memory


def peak_bytes(fn: Callable[[], Any], device: Any = "cpu") -> int:
    """Peak memory of one run of fn in bytes, beyond what was allocated before; its result counts too.

    CUDA: the caching allocator's own peak. CPU: the allocations and releases that torch's profiler records, including a
    kernel's temporary buffers (unless they bypass torch's allocator). Other devices raise ValueError.
    """
    if _cpu_or_cuda(device) == "cpu":
        return max(accumulate(_allocations(fn), initial=0))
    clock.sync(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = fn()
    clock.sync(device)
    del result
    return torch.cuda.max_memory_allocated(device) - before


def bytes_left(make: Callable[[], Any], device: Any = "cpu") -> int:
    """Bytes that the result of `make` occupies, beyond what was allocated before. CPU and CUDA, like `peak_bytes`."""
    if _cpu_or_cuda(device) == "cpu":
        return sum(_allocations(make))
    clock.sync(device)
    before, made = torch.cuda.memory_allocated(device), make()
    clock.sync(device)
    left = torch.cuda.memory_allocated(device) - before
    del made
    return left


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


def _cpu_or_cuda(device: Any) -> str:
    kind = str(device).split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"memory is measured on cpu and cuda, not on {device}; run this part on the CPU")
    return kind


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
