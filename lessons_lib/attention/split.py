"""Attention with the keys divided among workers (lesson 04): decoding has one query, and all its work lies in the keys.

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
    """q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v) -> (H, T, d_v) and the logsumexp (H, T).

    Each of `splits` workers attends to its own S / splits keys (rounded up; the last may have fewer, or none) and
    writes its result; one more pass reads them all and merges them. Every query sees all keys, as when decoding.
    memory counts the elements moved. Raises ValueError as `tiled`, and for splits below 1.
    """
    positive(splits=splits)
    check(q, keys, values)
    memory = memory or Memory()
    size = max(1, -(-keys.shape[1] // splits))
    parts = [
        tiled(q, keys[:, at : at + size], values[:, at : at + size], q.shape[1] or 1, block_k, memory=memory)
        for at in range(0, splits * size, size)
    ]
    outputs, logsumexps = (memory.load(torch.stack(found)) for found in zip(*parts, strict=True))
    out, logsumexp = merge_outputs(outputs, logsumexps)
    return memory.write(out).to(q.dtype), memory.write(logsumexp)


def busy(rows: int, processors: int, splits: int = 1) -> float:
    """Share of a GPU's processors that have work: rows (sequences x heads x query blocks) x splits, over whole rounds.

    9 heads on 132 processors, not split: 9 / 132. 140 pieces of work take two rounds: 140 / 264. Raises ValueError
    for sizes below 1.
    """
    positive(rows=rows, processors=processors, splits=splits)
    work = rows * splits
    return work / (-(-work // processors) * processors)
