"""Split-KV attention (lesson 04): in decoding there is one query, so the work is split over the keys.

Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference" (pytorch.org/blog/flash-decoding).
"""

import torch
from torch import Tensor

from lessons_lib.attention.heads import check, positive
from lessons_lib.attention.online import merge_outputs
from lessons_lib.attention.tiled import tiled


def split_kv(q: Tensor, keys: Tensor, values: Tensor, splits: int, block_k: int = 64) -> tuple[Tensor, Tensor]:
    """Attention with the keys split among workers -> output (H, T, d_v) and logsumexp (H, T).

    q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v). Each of `splits` workers attends to S / splits keys (rounded
    up; the last may have fewer, or none) and writes its result. One more pass reads all results and merges them.
    There is no mask: every query attends to all keys, as in decoding.
    """
    positive(splits=splits)
    check(q, keys, values)
    size = max(1, -(-keys.shape[1] // splits))
    # 1. each worker attends to its own keys
    parts = [
        tiled(q, keys[:, at : at + size], values[:, at : at + size], q.shape[1] or 1, block_k)
        for at in range(0, splits * size, size)
    ]
    # 2. one more pass merges the results
    out, logsumexp = merge_outputs(*(torch.stack(found) for found in zip(*parts, strict=True)))
    return out.to(q.dtype), logsumexp
