"""What loops over a matrix are told, so that a compiler and a CPU's caches make the most of them (lessons 03, 10)."""

from torch import Tensor

PLACES = 4  # where a one-row product reads at once: a core fetches ahead by itself within a page, and from many pages
CHUNK = 2**20  # values that are written out at a time: a few MB, so that they stay in a CPU's cache


def kept_in_memory(x: Tensor) -> Tensor:
    """x itself, in memory. A compiler that fuses too well would compute it again for each row that reads it.

    A strided view needs memory to point at, so what it looks at is written out first; it costs no copy.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())
