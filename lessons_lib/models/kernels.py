"""Matrix products and attention (lessons 01-04): the library's kernels, or sums that a compiler can fuse.

Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): H query heads share H_kv key/value heads,
g = H / H_kv queries each. Folding the g queries of a group into the query axis turns it into plain
attention with H_kv heads, and no key or value is ever copied.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib import native
from lessons_lib.caches.cache import causal_mask
from lessons_lib.compiler import PLACES, kept_in_memory


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """q (H, T, d), keys and values (H_kv, S, d), mask (T, S) bool with True = may attend -> (H, T, d).

    mask None is causal: the last query sees all S entries, the one before it S - 1, and so on.
    """
    heads, count, dim = q.shape
    groups, entries = heads // keys.shape[0], keys.shape[1]
    if mask is None and 1 < count == entries:  # a prompt: the kernel knows this mask and skips half the work
        args = dict(is_causal=True, enable_gqa=groups > 1)
        return F.scaled_dot_product_attention(q[None], keys[None], values[None], **args)[0]
    if mask is None and count > 1:
        mask = causal_mask(count, entries, q.device)
    folded = q.reshape(keys.shape[0], groups * count, dim)
    mask = mask if mask is None or groups == 1 else mask.repeat(groups, 1)
    out = F.scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask)
    return out[0].view(heads, count, dim)


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


def call(layer: Callable, *args) -> Tensor:
    """layer(*args)."""
    return layer(*args)


@dataclass(frozen=True)
class Kernels:
    """How a forward computes: attend(q, keys, values, mask) and multiply(x, weight) as `F.linear`.

    run(layer, *args): calls a layer, all of which are alike.
    """

    attend: Callable = attend
    multiply: Callable = F.linear
    run: Callable = call


LIBRARY = Kernels()  # eager: every product and every attention is one call of a library
FUSED = Kernels(attend_by_products)  # compiled, many rows: library products, attention in the open
OPEN = Kernels(attend_by_products, multiply_by_products)  # compiled, few rows: no product is a call
