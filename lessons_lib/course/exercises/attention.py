"""Checkers of the lesson on attention kernels: a sliding window, a bug, a merge, the memory of another design."""

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lessons_lib.attention.naive import naive
from lessons_lib.course.exercises import Wrong, exercise, expect
from lessons_lib.measure.profiler import peak_bytes

# FLOPs of products with a vector, which torch's counter leaves out: (n, d) or (d,) times (d,)
VECTORS = dict.fromkeys([torch.ops.aten.mv, torch.ops.aten.dot], lambda shape, *_, **__: 2 * math.prod(shape))


@exercise("04.1")
def sliding_window(attempt):
    """Equal to naive attention with a banded mask, without visiting tiles outside the band."""
    for tokens, window, block_q, block_k in [
        (10, 3, 4, 4), (33, 8, 16, 8), (40, 100, 16, 16), (25, 1, 8, 4), (256, 16, 16, 16),
    ]:  # fmt: skip
        q, k, v = torch.randn(3, tokens, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        at = torch.arange(tokens)
        band = (at <= at[:, None]) & (at > at[:, None] - window)
        wanted = naive(q[None], k[None], v[None], mask=band)[0]
        # MATH: torch's own attention consists of matmuls, too
        with FlopCounterMode(display=False, custom_mapping=VECTORS) as counted, sdpa_kernel(SDPBackend.MATH):
            expect(attempt, q, k, v, window, block_q, block_k, equals=wanted)
    # the last case, by FLOPs, so that a large matmul counts as all the tiles in it
    products = counted.get_total_flops() / (2 * 16 * 16 * 6)
    if products > 2 * 2 * 16:  # 16 blocks of queries, at most 2 tiles each, 2 products a tile
        raise Wrong(f"256 tokens with a window of 16 took the matmuls of {products / 2:.0f} tiles; 31 are enough.")


@exercise("04.2")
def mended_row(attempt):
    """Attention of one query, scores and values given as lists."""
    for scores in ([3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0], [1.0, 1000.0, -1000.0], [5.0]):
        values = [10.0 * (j + 1) for j in range(len(scores))]
        highest = max(scores)
        p = [math.exp(x - highest) for x in scores]
        equals = sum(x * v for x, v in zip(p, values, strict=True)) / sum(p)
        for size in (1, 2, 3):
            expect(attempt, scores, values, size, equals=equals)


@exercise("04.3")
def merged(attempt):
    """One number out of outputs and log-sum-exps of several workers."""
    expect(attempt, [1.0, 5.0], [0.0, math.log(3)], equals=4.0)
    expect(attempt, [1.0, 5.0, 9.0], [0.0, 0.0, 0.0], equals=5.0)
    expect(attempt, [1.0, 5.0], [1000.0, 1000.0 + math.log(3)], equals=4.0)  # exp(1000) overflows
    expect(attempt, [1.0, 5.0], [-1000.0, -1000.0], equals=3.0)  # exp(-1000) is 0
    expect(attempt, [0.0, 5.0], [-math.inf, 2.0], equals=5.0)  # a worker without keys


@exercise("04.4")
def chunked_peak(attempt):
    """Measured on tensors of two shapes; then the shape of Llama-2-7B."""
    for heads, tokens, rows, d in ((8, 512, 64, 16), (4, 1024, 32, 32)):
        q, k, v = torch.randn(3, heads, tokens, d, generator=torch.Generator().manual_seed(0))
        measured = peak_bytes(lambda: _chunked(q, k, v, rows))  # noqa: B023
        expect(attempt, heads, tokens, rows, d, 4, equals=measured, tolerance=0.01)
    expect(attempt, 32, 32768, 128, 128, 2, equals=2 * 32 * 32768 * 128 + (2 * 32 * 2 + 1) * 128 * 32768)


def _chunked(q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
    """Causal attention, whole rows of scores for `rows` queries at a time."""
    out = torch.empty_like(q)
    for end in range(rows, q.shape[1] + 1, rows):
        block = slice(end - rows, end)
        out[:, block] = naive(q[:, block], k[:, :end], v[:, :end], causal=True)
    return out
