"""Attention written to be read (lesson 04): exact, in plain PyTorch, with its traffic to slow memory counted.

heads       what all of them take: shapes checked, grouped heads viewed, who sees whom
naive       the T x S matrix in full
online      softmax over pieces: a running maximum, sum and mixture, and how two of them merge
tiled       FlashAttention: tile by tile, in the loop order of either version
split       one query over a long cache: the keys divided, the results merged
traffic     counting reads and writes, and the formulas that predict them
backends    which kernels of torch run here, and what the others say

Made for counting and for equality, not for speed: a kernel keeps a tile in fast memory, PyTorch does not.
"""

from lessons_lib.attention.backends import Outcome, attempts
from lessons_lib.attention.naive import naive
from lessons_lib.attention.online import Partial, merge_outputs
from lessons_lib.attention.split import busy, split_kv
from lessons_lib.attention.tiled import keys_outside, tiled
from lessons_lib.attention.traffic import (
    Memory,
    block_sizes,
    held,
    keys_outside_traffic,
    naive_traffic,
    order_of,
    split_traffic,
    tiled_traffic,
)

__all__ = [
    "Memory",
    "Outcome",
    "Partial",
    "attempts",
    "block_sizes",
    "busy",
    "held",
    "keys_outside",
    "keys_outside_traffic",
    "merge_outputs",
    "naive",
    "naive_traffic",
    "order_of",
    "split_kv",
    "split_traffic",
    "tiled",
    "tiled_traffic",
]
