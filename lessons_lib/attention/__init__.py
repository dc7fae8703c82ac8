"""Attention written to be read (lesson 04): exact, in plain PyTorch, with its memory traffic counted.

heads       shared input handling: shape checks, grouped heads, the causal mask
naive       the full T x S matrix
flash       online softmax; FlashAttention, block by block; split-KV, the keys split among workers
traffic     counted reads and writes, and the formulas that predict them
rotary      rotary position embeddings
backends    which SDPA kernels run here, and why the others do not

The code is made for counting and for checking equality, not for speed: a real kernel keeps a tile in fast memory,
PyTorch does not.
"""

from lessons_lib.attention.backends import attempts
from lessons_lib.attention.flash import split_kv, tiled
from lessons_lib.attention.naive import naive
from lessons_lib.attention.traffic import Memory, tiled_traffic

__all__ = [
    "Memory",
    "attempts",
    "naive",
    "split_kv",
    "tiled",
    "tiled_traffic",
]
