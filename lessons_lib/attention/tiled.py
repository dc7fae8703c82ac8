"""FlashAttention, forward, tile by tile (lesson 04): the T x S matrix is never whole, in either version's order.

Dao et al. 2022 (arXiv 2205.14135), Algorithm 1: `keys_outside`. Dao 2023 (arXiv 2307.08691), Algorithm 1: `tiled`.
All heads run at once here; on a GPU each is work of its own.
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
    """As `naive`, and the logsumexp of each query's scores: (H, T, d_v) in q's dtype, (H, T) in float32 or better.

    Version 2's order: a block of queries stays in fast memory, all keys pass by. Blocks above the causal diagonal
    are skipped. memory counts the elements moved (masks are not counted). A query that sees nothing gives zeros
    and -inf. Raises ValueError for shapes that do not fit, or blocks of less than 1.
    """
    positive(block_q=block_q, block_k=block_k)
    memory, dtype = memory or Memory(), q.dtype
    q, keys, values, sight = prepared(q, keys, values, causal, mask)
    out, logsumexp = q.new_empty((*q.shape[:-1], values.shape[-1])), q.new_empty(q.shape[:-1])
    for rows in spans(sight.queries, block_q):
        block, state = memory.load(piece(q, rows)), Partial.empty(piece(q, rows), values.shape[-1])
        for columns in spans(sight.reaches(rows), block_k):
            columns = range(columns.start, min(columns.start + block_k, sight.keys))  # a block is loaded whole
            k, v = memory.load(piece(keys, columns)), memory.load(piece(values, columns))
            state = state.merge(Partial.of(scored(block, k, sight, rows, columns), v))
        piece(out, rows).copy_(memory.write(state.output()))  # divided by l once, at the end
        logsumexp[..., rows.start : rows.stop] = memory.write(state.logsumexp())
    return out.flatten(0, 1).to(dtype), logsumexp.flatten(0, 1)


def keys_outside(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_q: int = 64,
    block_k: int = 64,
    causal: bool = False,
    mask: Tensor | None = None,
    memory: Memory | None = None,
) -> tuple[Tensor, Tensor]:
    """As `tiled` in version 1's order: a block of keys stays in fast memory, all queries pass by.

    q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v) -> (H, T, d_v), logsumexp (H, T). Each query's output, m
    and l go to slow memory and back once per block of keys, the output divided by l every time. ValueError as `tiled`.
    """
    positive(block_q=block_q, block_k=block_k)
    memory, dtype = memory or Memory(), q.dtype
    q, keys, values, sight = prepared(q, keys, values, causal, mask)
    kept = Partial.empty(q, values.shape[-1])  # m, l and the output so far, in slow memory
    for columns in spans(sight.keys, block_k):
        k, v = memory.load(piece(keys, columns)), memory.load(piece(values, columns))
        for rows in spans(sight.queries, block_q):
            if columns.start >= sight.reaches(rows):
                continue
            block, before = memory.load(piece(q, rows)), (memory.load(piece(x, rows)) for x in vars(kept).values())
            state = undivided(*before).merge(Partial.of(scored(block, k, sight, rows, columns), v))
            for slow, fast in zip(vars(kept).values(), (state.m, state.l, state.output()), strict=True):
                piece(slow, rows).copy_(memory.write(fast))
    return kept.o.flatten(0, 1).to(dtype), kept.logsumexp().flatten(0, 1)


def undivided(m: Tensor, l: Tensor, out: Tensor) -> Partial:  # noqa: E741
    """The state whose output (..., T, d_v) this was, m and l (..., T, 1)."""
    return Partial(m, l, out * l)


def scored(block: Tensor, keys: Tensor, sight: Sight, rows: range, columns: range) -> Tensor:
    """block (..., rows, d), keys (..., columns, d) -> scores of one tile (..., rows, columns), -inf where not seen."""
    scores = block @ keys.mT * block.shape[-1] ** -0.5
    seen = sight.tile(rows, columns, block.device)
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def piece(x: Tensor, span: range) -> Tensor:
    """These tokens of (..., tokens, channels), a view."""
    return x[..., span.start : span.stop, :]
