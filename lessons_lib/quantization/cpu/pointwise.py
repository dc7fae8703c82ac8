"""Matmul and attention as sums over products (lesson 03): what torch.compile can fuse with its surroundings on a CPU.

The library's own matmul of one row is made for many rows and reads memory slowly. Written as a sum, it becomes one
vectorised loop of the compiler, which streams several times faster.
"""

import torch
from torch import Tensor, nn

from lessons_lib.compiler import PLACES, kept_in_memory
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.linear import sharing_copy


def attend_by_products(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """As `attend`, with the scores in the open: what a compiler can fuse with its surroundings.

    One query is a sum over products, which the compiler turns into one vectorised loop. The CPU kernel
    behind scaled_dot_product_attention, made for many queries, stays a call of its own and can take far longer.
    """
    heads, count, dim = q.shape
    groups, q = heads // keys.shape[0], kept_in_memory(q)
    exact = torch.promote_types(q.dtype, torch.float32)
    if count == 1:
        keys, values = (x.repeat_interleave(groups, 0) for x in (keys, values))  # no copy once fused
        scores = (q * keys).sum(-1, dtype=exact)[:, None]
    else:  # the queries of a group lie behind one another, so that nothing is copied for them
        scores = (q.view(len(keys), groups * count, dim) @ keys.transpose(1, 2)).to(exact).view(heads, count, -1)
    scores = scores * dim**-0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    if count == 1:
        return (weights.transpose(1, 2) * values).sum(1, keepdim=True).to(q.dtype)
    return (weights.to(q.dtype).view(len(keys), groups * count, -1) @ values).view(heads, count, dim)


def attend_natively(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As `attend_by_products` with a mask, several queries by our kernel in C++ (`native`): two products of a library
    take longer to begin than to multiply so little."""
    if q.shape[1] == 1 or q.shape[2] % native.LANES:
        return attend_by_products(q, keys, values, mask)
    return native.attend_few_rows(q, keys, values, mask)


def multiply_by_products(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, D) of few rows times weight (N, D) transposed -> (T, N), as sums over products, in float32 or better.

    Compiled, each sum is one vectorised loop that reads its row of the weights once, in order. On CPUs that
    streams several times faster than the library's product of one row, which is made for many. The sums of several
    rows of x become one loop, which reads the weights once for all of them. One row of x leaves a core waiting for
    memory: its loop reads PLACES rows of the weights at a time, far from one another.
    """
    if len(x) == 1:
        return torch.cat([_row_by_products(x, part) for part in weight.chunk(PLACES)], 1)
    return torch.cat([_row_by_products(row, weight) for row in x.split(1)])


def _row_by_products(x: Tensor, weight: Tensor) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    # x alone is cast, and the product takes its precision: a cast of frozen weights would be done ahead of time
    # and kept, twice the bytes to read at every step
    return (kept_in_memory(x.to(exact)) * weight).sum(-1).to(x.dtype)[None]


class PointwiseLinear(nn.Linear):
    """An nn.Linear that multiplies by `multiply_by_products`."""

    def forward(self, x: Tensor) -> Tensor:
        return multiply_by_products(x, self.weight)


def with_linears(decoder: nn.Module, kind: type[nn.Linear]) -> nn.Module:
    """A copy of the decoder with its nn.Linear modules as another class of them; all weights are shared."""
    copy = sharing_copy(decoder)
    for module in copy.modules():
        if type(module) is nn.Linear:
            module.__class__ = kind
    return copy


def pointwise_linears(decoder: nn.Module) -> nn.Module:
    """A copy of the decoder for the compiler, with matmuls of few rows as sums; all weights are shared."""
    return with_linears(decoder, PointwiseLinear)
