"""Traffic between slow and fast memory (lesson 04): counted while attention runs, and predicted by formula.

All numbers are elements; multiply by the bytes of one. On a GPU, slow memory is HBM and fast memory is a processor's
shared memory; on a CPU they are DRAM and caches.
T queries, S keys, d channels, H query heads (each reads the keys that it shares). IO analysis: Dao et al. 2022 (arXiv
2205.14135), theorem 2.
"""

from dataclasses import dataclass

from torch import Tensor

from lessons_lib.attention.heads import Sight, positive, spans


@dataclass
class Memory:
    """Counts the elements loaded from slow memory and written to it."""

    read: int = 0
    written: int = 0

    @property
    def moved(self) -> int:
        """Elements read plus elements written."""
        return self.read + self.written

    def load(self, x: Tensor) -> Tensor:
        """Count x (...) as read and return it; a head expanded g times counts g times."""
        self.read += x.numel()
        return x

    def write(self, x: Tensor) -> Tensor:
        """Count x (...) as written and return it."""
        self.written += x.numel()
        return x


def naive_traffic(T: int, S: int, d: int, H: int = 1) -> Memory:
    """Traffic of `naive`, three kernels: scores, softmax, product with the values.

    Scores read q and keys and write T x S; softmax reads and writes T x S; the last kernel reads T x S and the values.
    Masked scores are computed and moved like all others, so causal attention moves no less.
    """
    return Memory(H * (T * d + 2 * S * d + 2 * T * S), H * (T * d + 2 * T * S))


def tiled_traffic(T: int, S: int, d: int, block_q: int, block_k: int, H: int = 1, causal: bool = False) -> Memory:
    """Traffic of `tiled`: queries in once, outputs and logsumexp out once, keys and values in once per block of
    queries.

    Without causal: T d + 2 S d ceil(T / block_q) read, T d + T written.
    """
    positive(block_q=block_q, block_k=block_k)
    sight = Sight(T, S, causal)
    passed = sum(min(S, up(sight.reaches(rows), block_k)) for rows in spans(T, block_q))
    return Memory(H * (T * d + 2 * d * passed), H * T * (d + 1))


def keys_outside_traffic(
    T: int, S: int, d: int, block_q: int, block_k: int, H: int = 1, causal: bool = False
) -> Memory:
    """Traffic of `keys_outside`: keys and values are read once, all else once per block of keys.

    Per block of keys, the queries are read, and outputs, m and l are read and written.
    Without causal: 2 S d + T (2 d + 2) ceil(S / block_k) read, T (d + 2) ceil(S / block_k) written.
    """
    positive(block_q=block_q, block_k=block_k)
    # for each block of keys, the first query that attends to it; blocks of queries before that one are skipped
    first = (max(0, columns.start - (S - T)) if causal else 0 for columns in spans(S, block_k))
    passed = sum(T - row // block_q * block_q for row in first)
    return Memory(H * (2 * S * d + passed * (2 * d + 2)), H * passed * (d + 2))


def split_traffic(T: int, S: int, d: int, splits: int, H: int = 1) -> Memory:
    """Traffic of `split_kv`: queries in once per split, keys and values once; each result is written and read again."""
    positive(splits=splits)
    result = T * (d + 1)
    return Memory(H * (splits * T * d + 2 * S * d + splits * result), H * (splits + 1) * result)


def block_sizes(M: int, d: int) -> tuple[int, int]:
    """FlashAttention's (block_q, block_k) for a fast memory of M elements: ceil(M / 4d) keys, at most d queries."""
    positive(M=M, d=d)
    block_k = -(-M // (4 * d))
    return min(block_k, d), block_k


def held(block_q: int, block_k: int, d: int) -> int:
    """Elements of one tile in fast memory: queries and outputs, keys and values, scores."""
    return 2 * block_q * d + 2 * block_k * d + block_q * block_k


def order_of(T: int, S: int, d: int, M: int) -> float:
    """T S d² / M: how the traffic of version 1 grows (the constant depends on the block sizes)."""
    return T * S * d * d / M


def up(length: int, block: int) -> int:
    """Round length up to whole blocks: 5, 2 -> 6."""
    return -(-length // block) * block
