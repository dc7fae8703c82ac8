"""Attention by its definition (lesson 04): softmax(q kᵀ / √d) v, with both T x S matrices in slow memory."""

import torch
from torch import Tensor

from lessons_lib.attention.heads import Sight, prepared
from lessons_lib.attention.traffic import Memory


def naive(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    causal: bool = False,
    mask: Tensor | None = None,
    memory: Memory | None = None,
) -> Tensor:
    """Attention: q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v) -> (H, T, d_v), in the dtype of q.

    causal: aligned to the lower right. mask: (T, S) bool, True = may attend. A fully masked query returns zeros.
    memory: counts the elements that three separate kernels move (scores, softmax, matmul with the values).
    Source: Vaswani et al. 2017 (arXiv 1706.03762).
    """
    memory, dtype, sight = memory or Memory(), q.dtype, Sight(q.shape[1], keys.shape[1], causal)
    seen = sight.tile(range(sight.queries), range(sight.keys), q.device)
    if mask is not None:
        seen = mask if seen is None else mask & seen
    q, keys, values = prepared(q, keys, values)
    mixed = memory.load(probabilities(q, keys, seen, memory)) @ memory.load(values)
    return memory.write(mixed).flatten(0, 1).to(dtype)


def probabilities(q: Tensor, keys: Tensor, seen: Tensor | None, memory: Memory) -> Tensor:
    """Softmax of the scores: `prepared` q (H_kv, g, T, d) and keys (H_kv, g, S, d) -> (H_kv, g, T, S).

    seen: (T, S) bool, or None if nothing is masked. A fully masked row becomes zeros. Scores are changed in place, so
    that at most two such matrices exist at once: scores and probabilities.
    """
    scores = memory.load(q) @ memory.load(keys).mT
    scores = memory.load(memory.write(scores.mul_(q.shape[-1] ** -0.5)))
    if seen is None:
        return memory.write(scores.softmax(-1))
    weights = scores.masked_fill_(~seen, -torch.inf).softmax(-1)
    blind = ~seen.any(-1, keepdim=True)  # the softmax of a fully masked row is NaN
    return memory.write(weights.masked_fill_(blind, 0))
