"""The kernels that the hardware probe times: copy, read, products of one row, a few and many (lesson 00).

Best of several runs: other programs can only make a run slower. KeyError for a dtype that is no name of DTYPES; errors
of a device that is not there are torch's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from lessons_lib.measure import clock, machine
from lessons_lib.measure.config import ModelConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
MOST_BYTES = 512 * 2**20  # of the buffers on a CPU
BUDGET = 0.5  # seconds that one square product may take
WIDEST = 16  # rows of the widest product


def best(fn: Callable[[], Any], device: Any, repeats: int = 5) -> float:
    """Seconds of the fastest of `repeats` runs; of all of them in tests too, because the probe's result is kept."""
    fn(), fn()
    return min(clock.timed(fn, device, repeats=1, warmup=0).min for _ in range(repeats))


def buffer_bytes(device: Any) -> int:
    """Bytes: at least 8 times the last-level cache, so that nothing is read from it, within MOST_BYTES."""
    floor = MOST_BYTES // 2 if str(device) == "cpu" else 2**30
    size = max(floor, 8 * machine.cache_bytes(device))
    return min(size, MOST_BYTES) if str(device) == "cpu" else size


def streams(device: Any) -> tuple[float, float]:
    """(copy, read) bandwidth in bytes/s. Copy counts what is read and what is written."""
    buffer = torch.ones(buffer_bytes(device) // 4, dtype=torch.float32, device=device)
    source, target = buffer.chunk(2)
    copy = best(lambda: target.copy_(source), device)  # half is read, half is written
    read = best(buffer.sum, device)
    return buffer.nbytes / copy, buffer.nbytes / read


def matvec(device: Any, dtype: str) -> float:
    """Bytes/s at which torch's eager one-row product x Wᵀ reads W."""
    width, kind = 4096, DTYPES[dtype]
    rows = buffer_bytes(device) // (width * kind.itemsize)
    weight = torch.full((rows, width), 0.01, dtype=kind, device=device)
    x = torch.ones(1, width, dtype=kind, device=device)
    with torch.inference_mode():
        seconds = best(lambda: torch.nn.functional.linear(x, weight), device)
    return weight.nbytes / seconds


def matmul(device: Any, dtype: str) -> float:
    """FLOP/s of the best square product; sizes double until the next would take over BUDGET seconds."""
    rate, side = 0.0, 256
    deadline = time.perf_counter() + 4 * BUDGET
    while side <= 16384:
        a = torch.rand(side, side, device=device).to(DTYPES[dtype])  # constants: less heat, more clock
        seconds = best(lambda a=a: a @ a, device, 3)
        rate = max(rate, 2 * side**3 / seconds)
        if 8 * seconds > BUDGET or time.perf_counter() + 5 * 8 * seconds > deadline:
            break
        side *= 2
    return rate


def widths(device: Any, dtype: str) -> dict[int, float]:
    """{w: v(w)} of one large matrix: time of w rows through it over that of one row, w doubling up to WIDEST.

    Stops where the next width would take over BUDGET seconds, as with a format that is emulated.
    """
    side = 4096
    weight = torch.full((buffer_bytes(device) // (4 * side * DTYPES[dtype].itemsize), side), 0.01, device=device)
    weight, took, w = weight.to(DTYPES[dtype]), {}, 1
    with torch.inference_mode():
        while w <= WIDEST and 2 * took.get(w // 2, 0.0) <= BUDGET:
            x = torch.ones(w, side, dtype=weight.dtype, device=device)
            took[w] = best(lambda x=x: torch.nn.functional.linear(x, weight), device)
            w *= 2
    return {w: seconds / took[1] for w, seconds in took.items()}


def linears(shape: ModelConfig, dtype: str, device: Any, rows: int = 1, head_rows: int = 1) -> float:
    """Seconds of torch's eager products of `rows` rows with this model's own matrices, `head_rows` with its head.

    Small matrices are read more slowly than the probe's large one. Of a large model only as many layers as fit
    1 GiB are made, and their time is scaled up. `cost.CostModel` keeps them, and the rates that follow.
    """
    made = {"dtype": DTYPES[dtype], "device": device}
    sizes = shape.layer_matrices
    layer = sum(height * width for height, width in sizes) * made["dtype"].itemsize
    layers = min(shape.num_layers, max(1, 2**30 // layer))
    weights = [torch.full(size, 0.01, **made) for size in sizes * layers]
    inputs = {width: torch.ones(rows, width, **made) for _, width in sizes}
    head, last = (
        torch.full((shape.vocab_size, shape.hidden_size), 0.01, **made),
        torch.ones(head_rows, shape.hidden_size, **made),
    )

    def read() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    with torch.inference_mode():
        inside = best(read, device) * shape.num_layers / layers
        return inside + best(lambda: torch.nn.functional.linear(last, head), device)
