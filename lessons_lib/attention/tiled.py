"""FlashAttention's forward pass, block by block (lesson 04): the T x S matrix never exists as a whole.

Dao et al. 2022 (arXiv 2205.14135), in the loop order of Dao 2023 (arXiv 2307.08691), Algorithm 1.
All heads run at once here; on a GPU each head is a separate piece of work.
"""

import torch
from torch import Tensor

from lessons_lib.attention.heads import Sight, positive, prepared, spans
from lessons_lib.attention.online import Partial
from lessons_lib.attention.traffic import Memory


def tiled(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_q: int = 64,
    block_k: int = 64,
    causal: bool = False,
    mask: Tensor | None = None,
    memory: Memory | None = None,
) -> tuple[Tensor, Tensor]:
    """FlashAttention 2: as `naive`, plus the logsumexp of each query's scores -> (H, T, d_v), (H, T).

    The outer loop runs over blocks of queries, the inner one over keys. Blocks above the causal diagonal are skipped.
    The output is in q's dtype, the logsumexp in float32 or better. A fully masked query returns zeros and -inf. memory:
    counts the elements moved, without masks.
    """
    positive(block_q=block_q, block_k=block_k)
    memory, dtype = memory or Memory(), q.dtype
    q, keys, values, sight = prepared(q, keys, values, causal, mask)
    out, logsumexp = q.new_empty((*q.shape[:-1], values.shape[-1])), q.new_empty(q.shape[:-1])
    # outer loop: a block of queries stays in fast memory
    for rows in spans(sight.queries, block_q):
        block, state = memory.load(piece(q, rows)), Partial.empty(piece(q, rows), values.shape[-1])
        # inner loop: stream the keys and values past it
        for columns in spans(sight.reaches(rows), block_k):
            columns = range(columns.start, min(columns.start + block_k, sight.keys))  # a block is loaded whole
            k, v = memory.load(piece(keys, columns)), memory.load(piece(values, columns))
            state = state.merge(Partial.of(scored(block, k, sight, rows, columns), v))
        piece(out, rows).copy_(memory.write(state.output()))  # divided by l once, at the end
        logsumexp[..., rows.start : rows.stop] = memory.write(state.logsumexp())
    return out.flatten(0, 1).to(dtype), logsumexp.flatten(0, 1)


def scored(block: Tensor, keys: Tensor, sight: Sight, rows: range, columns: range) -> Tensor:
    """Scores of one tile: block (..., rows, d), keys (..., columns, d) -> (..., rows, columns), -inf where masked."""
    scores = block @ keys.mT * block.shape[-1] ** -0.5
    seen = sight.tile(rows, columns, block.device)
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def piece(x: Tensor, span: range) -> Tensor:
    """The tokens of `span` in x (..., tokens, channels), as a view."""
    return x[..., span.start : span.stop, :]
