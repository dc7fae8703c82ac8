"""Matmul and attention as sums over elementwise products (lesson 03), which torch.compile can fuse on a CPU.

The library's matmul is made for many rows and reads memory slowly when it multiplies only one. Written as a sum, a
matrix-vector product becomes one vectorised loop, which reads memory in order.
"""

import torch
from torch import Tensor, nn

from lessons_lib.caches.cache import causal_mask
from lessons_lib.compiler import kept_in_memory
from lessons_lib.quantization.cpu import STREAMS, native
from lessons_lib.quantization.linear import sharing_copy


def attend_by_products(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """As `attend`, with explicit scores, which a compiler can fuse with the operations around them.

    With one query, scores and output are sums over products: one vectorised loop. The CPU kernel of
    scaled_dot_product_attention is made for many queries; it stays a separate call and can take far longer.
    """
    # 1. scores
    heads, count, dim = q.shape
    groups, q = heads // keys.shape[0], kept_in_memory(q)
    if mask is None and count > 1:
        mask = causal_mask(count, keys.shape[1], q.device)
    exact = torch.promote_types(q.dtype, torch.float32)
    if count == 1:
        keys, values = (x.repeat_interleave(groups, 0) for x in (keys, values))  # no copy once fused
        scores = (q * keys).sum(-1, dtype=exact)[:, None]
    else:  # the queries of a group are contiguous, so keys and values need no copy
        scores = (q.view(len(keys), groups * count, dim) @ keys.transpose(1, 2)).to(exact).view(heads, count, -1)
    scores = scores * dim**-0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    # 2. softmax, then the weighted sum of the values
    weights = scores.softmax(-1)
    if count == 1:
        return (weights.transpose(1, 2) * values).sum(1, keepdim=True).to(q.dtype)
    return (weights.to(q.dtype).view(len(keys), groups * count, -1) @ values).view(heads, count, dim)


def attend_natively(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As `attend_by_products` with a mask, but several queries use our C++ kernel (`native`).

    For so few queries, two library matmuls spend more time starting than multiplying.
    """
    if q.shape[1] == 1 or q.shape[2] % native.LANES:
        return attend_by_products(q, keys, values, mask)
    return native.attend_few_rows(q, keys, values, mask)


def multiply_by_products(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, D), few rows, times weight (N, D) transposed -> (T, N), as sums over products in float32 or better.

    Compiled, each sum is one vectorised loop that reads its row of the weights once, in order. The sums for several
    rows of x become one loop, which reads the weights once for all of them.
    With one row of x, a core mostly waits for memory, so its loop reads STREAMS distant rows of the weights at a time.
    """
    if len(x) == 1:
        return torch.cat([_row_by_products(x, part) for part in weight.chunk(STREAMS)], 1)
    return torch.cat([_row_by_products(row, weight) for row in x.split(1)])


def _row_by_products(x: Tensor, weight: Tensor) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    # cast only x; type promotion does the rest. The compiler would fold a cast of the frozen weights ahead of time
    # and keep the result: twice the bytes to read at every step
    return (kept_in_memory(x.to(exact)) * weight).sum(-1).to(x.dtype)[None]


class PointwiseLinear(nn.Linear):
    """nn.Linear that multiplies with `multiply_by_products`."""

    def forward(self, x: Tensor) -> Tensor:
        return multiply_by_products(x, self.weight)


def pointwise_linears(decoder: nn.Module) -> nn.Module:
    """A copy of the decoder for torch.compile, with matmuls of few rows as sums; all weights are shared."""
    copy = sharing_copy(decoder)
    for module in copy.modules():
        if type(module) is nn.Linear:
            module.__class__ = PointwiseLinear
    return copy
