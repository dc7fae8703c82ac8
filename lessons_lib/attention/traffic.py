"""Reads and writes between slow and fast memory (lesson 04): counted while attention runs, and by formula.

In elements, times the bytes of one. A GPU's slow memory is its HBM, the fast one a processor's shared memory; a
CPU's are its DRAM and its caches. Sizes: T queries, S keys, d channels, H heads (query heads: each reads the keys
that it shares). IO analysis: Dao et al. 2022 (arXiv 2205.14135), theorem 2.
"""

from dataclasses import dataclass

from torch import Tensor

from lessons_lib.attention.heads import Sight, positive, spans


@dataclass
class Memory:
    """Counts what is loaded from slow memory and written to it, in elements."""

    read: int = 0
    written: int = 0

    @property
    def moved(self) -> int:
        """Read and written."""
        return self.read + self.written

    def load(self, x: Tensor) -> Tensor:
        """x (...) itself, counted as read; a head that is viewed g times is read g times."""
        self.read += x.numel()
        return x

    def write(self, x: Tensor) -> Tensor:
        """x (...) itself, counted as written."""
        self.written += x.numel()
        return x


def naive_traffic(T: int, S: int, d: int, H: int = 1) -> Memory:
    """Three kernels: scores (q and keys in, T x S out), softmax (T x S in and out), mixture (T x S and values in).

    Masked scores are computed, written and read like all others, so causal attention moves no less.
    """
    return Memory(H * (T * d + 2 * S * d + 2 * T * S), H * (T * d + 2 * T * S))


def tiled_traffic(T: int, S: int, d: int, block_q: int, block_k: int, H: int = 1, causal: bool = False) -> Memory:
    """`tiled`: queries in once, outputs and logsumexp out once, keys and values in once per block of queries.

    Not causal: T d + 2 S d ceil(T / block_q) in, T d + T out. Raises ValueError for blocks below 1.
    """
    positive(block_q=block_q, block_k=block_k)
    sight = Sight(T, S, causal)
    passed = sum(min(S, up(sight.reaches(rows), block_k)) for rows in spans(T, block_q))
    return Memory(H * (T * d + 2 * d * passed), H * T * (d + 1))


def keys_outside_traffic(
    T: int, S: int, d: int, block_q: int, block_k: int, H: int = 1, causal: bool = False
) -> Memory:
    """`keys_outside`: keys and values in once; per block of keys the queries, and outputs, m and l in and out again.

    Not causal: 2 S d + T (2 d + 2) ceil(S / block_k) in, T (d + 2) ceil(S / block_k) out. ValueError as above.
    """
    positive(block_q=block_q, block_k=block_k)
    first = (max(0, columns.start - (S - T)) if causal else 0 for columns in spans(S, block_k))  # the first that looks
    passed = sum(T - row // block_q * block_q for row in first)
    return Memory(H * (2 * S * d + passed * (2 * d + 2)), H * passed * (d + 2))


def split_traffic(T: int, S: int, d: int, splits: int, H: int = 1) -> Memory:
    """`split_kv`: queries in once per split, keys and values once; each split's result out, in again, and merged.

    Raises ValueError for splits below 1.
    """
    positive(splits=splits)
    result = T * (d + 1)
    return Memory(H * (splits * T * d + 2 * S * d + splits * result), H * (splits + 1) * result)


def block_sizes(M: int, d: int) -> tuple[int, int]:
    """(block_q, block_k) of FlashAttention for a fast memory of M elements: block_k = ceil(M / 4d), block_q <= d.

    Raises ValueError for sizes below 1.
    """
    positive(M=M, d=d)
    block_k = -(-M // (4 * d))
    return min(block_k, d), block_k


def held(block_q: int, block_k: int, d: int) -> int:
    """Elements that a tile keeps in fast memory: queries and outputs, keys and values, scores."""
    return 2 * block_q * d + 2 * block_k * d + block_q * block_k


def order_of(T: int, S: int, d: int, M: int) -> float:
    """T S d² / M: the order in which version 1's traffic grows (its constant depends on the block sizes)."""
    return T * S * d * d / M


def up(length: int, block: int) -> int:
    """length, rounded up to whole blocks: 5, 2 -> 6."""
    return -(-length // block) * block
