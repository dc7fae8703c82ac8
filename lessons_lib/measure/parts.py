"""A step taken apart (lesson 03): which of its time is matrix products, which attention, launch, the rest.

torch's profiler says what each operator and each compiled kernel takes itself; its own cost falls on what lies
between them. So the whole step is timed without it, and the rest is what the named parts leave over.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from lessons_lib.measure import clock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages would land in notebooks

# What torch, MKL, oneDNN and the compiler's templates call the kernels of a decode step.
PARTS = {
    "one kernel": r"softmax.*silu|silu.*softmax",  # compiled: products, attention and all else of a layer at once
    "matrix products": r"gemm|matmul|int8pack_mm|::(add|b)?mm$|_linear|gemv|cutlass|nvjet",
    "attention": r"scaled_dot_product|softmax|flash|fmha",
    "launch": r"CompiledFxGraph|Torch-Compiled Region|TorchDynamo|Runtime Wrapper|Pregraph",  # Python around a graph
}


def taken_apart(
    step: Callable[[], Any],
    device: Any = "cpu",
    runs: int = 10,
    launch: float | None = None,
    parts: Mapping[str, str] = PARTS,
) -> dict[str, float]:
    """Seconds of a step by part, medians over `runs`: {"matrix products": ..., "attention": ..., "the rest": ...}.

    Parts that take no time are left out, the rest is always there. A compiled kernel counts whole, with what the
    compiler fused into it. The rest: norms, positions, sampling, and starting all of them. launch: seconds of the
    rest that an eager step spends on starting its operators, which is all of it in a twin too narrow for anything
    else to count; a part of its own then. Around a compiled graph it is Python, which the profiler names.
    parts: as of `grouped`. IndexError for no runs; errors of step come through.
    """
    whole = clock.timed(step, device, repeats=runs).median
    profiles = [grouped(kernel_times(step, device), parts) for _ in range(runs)]
    found = {name: statistics.median(profile[name] for profile in profiles) for name in parts}
    found = {name: seconds for name, seconds in found.items() if seconds}
    rest = max(0.0, whole - sum(found.values()))
    if launch is None:
        return found | {"the rest": rest}
    return found | {"launch": min(launch, rest), "the rest": max(0.0, rest - launch)}


def kernel_times(fn: Callable[[], Any], device: Any = "cpu") -> dict[str, float]:
    """Seconds that each operator or kernel itself takes in one run of fn, on the device where it runs.

    Errors of fn come through.
    """
    from torch.profiler import ProfilerActivity, profile

    on_cpu = str(device) == "cpu"
    with profile(activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA]) as found:
        fn()
        clock.sync(device)
    which = "self_cpu_time_total" if on_cpu else "self_device_time_total"
    return {event.key: getattr(event, which) * 1e-6 for event in found.key_averages()}


def grouped(times: Mapping[str, float], parts: Mapping[str, str] = PARTS) -> dict[str, float]:
    """Sums of kernel times by part; kernels that no expression matches are left out.

    parts: name -> regular expression of kernel names, the first that matches counts; re.error for one that is none.

    >>> grouped({"aten::mm": 2.0, "aten::addmm": 1.0, "aten::add": 5.0})
    {'one kernel': 0.0, 'matrix products': 3.0, 'attention': 0.0, 'launch': 0.0}
    """
    sums = dict.fromkeys(parts, 0.0)
    for kernel, seconds in times.items():
        part = next((name for name, pattern in parts.items() if re.search(pattern, kernel)), None)
        if part:
            sums[part] += seconds
    return sums
