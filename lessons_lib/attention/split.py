"""Split-KV attention (lesson 04): in decoding there is one query, so the work is split over the keys.

Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference" (pytorch.org/blog/flash-decoding).
"""

import torch
from torch import Tensor

from lessons_lib.attention.heads import check, positive
from lessons_lib.attention.online import merge_outputs
from lessons_lib.attention.tiled import tiled
from lessons_lib.attention.traffic import Memory


def split_kv(
    q: Tensor, keys: Tensor, values: Tensor, splits: int, block_k: int = 64, memory: Memory | None = None
) -> tuple[Tensor, Tensor]:
    """Attention with the keys split among workers -> output (H, T, d_v) and logsumexp (H, T).

    q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v). Each of `splits` workers attends to S / splits keys (rounded
    up; the last may have fewer, or none) and writes its result. One more pass reads all results and merges them.
    There is no mask: every query attends to all keys, as in decoding. memory: counts the elements moved.
    """
    positive(splits=splits)
    check(q, keys, values)
    memory = memory or Memory()
    size = max(1, -(-keys.shape[1] // splits))
    # 1. each worker attends to its own keys
    parts = [
        tiled(q, keys[:, at : at + size], values[:, at : at + size], q.shape[1] or 1, block_k, memory=memory)
        for at in range(0, splits * size, size)
    ]
    # 2. one more pass merges the results
    outputs, logsumexps = (memory.load(torch.stack(found)) for found in zip(*parts, strict=True))
    out, logsumexp = merge_outputs(outputs, logsumexps)
    return memory.write(out).to(q.dtype), memory.write(logsumexp)


def busy(rows: int, processors: int, splits: int = 1) -> float:
    """Share of a GPU's processors that have work, averaged over whole rounds.

    rows: sequences x heads x query blocks; each makes `splits` pieces of work. 9 heads on 132 processors without
    splitting: 9 / 132. 140 pieces of work take two rounds: 140 / 264.
    """
    positive(rows=rows, processors=processors, splits=splits)
    work = rows * splits
    return work / (-(-work // processors) * processors)
