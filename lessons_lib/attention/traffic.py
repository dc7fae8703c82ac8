"""Traffic between slow and fast memory (lesson 04): counted while attention runs, and predicted by formula.

All numbers but those of `held` are elements; multiply by the bytes of one. On a GPU, slow memory is HBM and fast
memory is a processor's shared memory; on a CPU they are DRAM and caches.
T queries, S keys, d channels, H query heads (each reads the keys that it shares). IO analysis: Dao et al. 2022 (arXiv
2205.14135), theorem 2.
"""

from dataclasses import dataclass

from torch import Tensor

from lessons_lib.attention.heads import Sight, spans


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


def naive_traffic(T: int, S: int, d: int) -> Memory:
    """Traffic of one head of `naive`, three kernels: scores, softmax, matmul with the values.

    Scores read q and keys and write T x S; softmax reads and writes T x S; the last kernel reads T x S and the values.
    Masked scores are computed and moved like all others, so causal attention moves no less.
    """
    return Memory(T * d + 2 * S * d + 2 * T * S, T * d + 2 * T * S)


def tiled_traffic(T: int, S: int, d: int, block_q: int, block_k: int, H: int = 1, causal: bool = False) -> Memory:
    """Traffic of `tiled`: queries in once, outputs and logsumexp out once, keys and values in once per block of
    queries.

    Without causal: T d + 2 S d ceil(T / block_q) read, T d + T written.
    """
    sight = Sight(T, S, causal)
    passed = sum(min(S, up(sight.reaches(rows), block_k)) for rows in spans(T, block_q))
    return Memory(H * (T * d + 2 * d * passed), H * T * (d + 1))


def held(block_q: int, block_k: int, d: int) -> int:
    """Bytes of one tile in fast memory: queries, keys and values in 16 bits, scores and output in float32.

    Kernels keep these widths: they add up in float32 and round the output when they write it.
    """
    return 2 * (block_q * d + 2 * block_k * d) + 4 * (block_q * block_k + block_q * d)


def up(length: int, block: int) -> int:
    """Round length up to whole blocks: 5, 2 -> 6."""
    return -(-length // block) * block
