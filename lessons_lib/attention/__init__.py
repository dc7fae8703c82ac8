"""Attention written to be read (lesson 04): exact, in plain PyTorch, with its memory traffic counted.

heads       shared input handling: shape checks, grouped heads, masks
naive       the full T x S matrix
online      online softmax: a running maximum, sum and output, and how two partial results merge
tiled       FlashAttention, block by block
split       split-KV: one query over a long cache, the keys split among workers, the results merged
traffic     counted reads and writes, and the formulas that predict them
rotary      rotary position embeddings
backends    which SDPA kernels run here, and why the others do not

The code is made for counting and for checking equality, not for speed: a real kernel keeps a tile in fast memory,
PyTorch does not.
"""

from lessons_lib.attention.backends import Outcome, attempts
from lessons_lib.attention.naive import naive
from lessons_lib.attention.online import Partial, merge_outputs
from lessons_lib.attention.split import split_kv
from lessons_lib.attention.tiled import tiled
from lessons_lib.attention.traffic import (
    Memory,
    naive_traffic,
    tiled_traffic,
)

__all__ = [
    "Memory",
    "Outcome",
    "Partial",
    "attempts",
    "merge_outputs",
    "naive",
    "naive_traffic",
    "split_kv",
    "tiled",
    "tiled_traffic",
]
