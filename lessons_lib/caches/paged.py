"""The paged cache (lesson 05): keys and values in blocks of equal size, and for every sequence a list of its blocks.

No sequence needs neighbouring memory, so none reserves room for the longest possible text; what stays empty is the
rest of its last block. Who owns which block is decided elsewhere (`serving/block_pool.py`): a cache reads its list
anew at every use. Kwon et al. 2023, PagedAttention (arXiv 2309.06180).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.caches.cache import CountedCache, unbroken
from lessons_lib.caches.paged_memory import PagedMemory, Places
from lessons_lib.caches.sizes import blocks_for
from lessons_lib.caches.static import CacheFullError


class PagedCache(CountedCache):
    """Keys and values of one sequence in the blocks that `blocks` lists in order; its owner may change the list."""

    def __init__(self, memory: PagedMemory, blocks: list[int], length: int = 0):
        """length: entries that the blocks hold already, when a prefix is shared."""
        super().__init__(len(memory.keys), length)
        self.memory, self.blocks = memory, blocks
        self._places: tuple[tuple, Places] | None = None

    @property
    def capacity(self) -> int:
        """Entries that fit into the blocks it has."""
        return len(self.blocks) * self.memory.block_size

    @property
    def most(self) -> int:
        """Entries it may hold now: it takes no blocks by itself."""
        return self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks, shared or not, used or not."""
        return self.memory.nbytes // len(self.memory.keys[0]) * len(self.blocks)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (H_kv, T, d) of T new tokens -> all entries of that layer (H_kv, S + T, d).

        CacheFullError without room in its blocks.
        """
        start, count = self._lengths[layer], keys.shape[1]
        places = self.places(start, count)
        self.memory.write(layer, places, keys, values)
        self._lengths[layer] += count
        if start == 0:  # a prompt sees itself alone: nothing to collect
            return keys, values
        keys, values = self.memory.read(layer, places)
        return keys[0, :, : start + count], values[0, :, : start + count]

    def places(self, start: int, count: int) -> Places:
        """Where `count` entries behind `start` go; worked out once for all layers. CacheFullError without room."""
        self.check(start + count)
        key = start, count, *self.blocks
        if self._places is None or self._places[0] != key:
            self._places = key, self.memory.places([self.blocks], [start], count)
        return self._places[1]

    def room(self, count: int) -> tuple[int, list[int], list[int]]:
        """For `count` new entries: the first one's number, the blocks up to the last one's, the block that they begin.

        Of the last there is none or one, which they do not fill. CacheFullError without room.
        """
        start, end = self.length(), self.length() + count
        self.check(end)
        used = self.blocks[: blocks_for(end, self.memory.block_size)]
        return start, used, self.memory.begun(self.blocks, start, end)

    def check(self, needed: int) -> None:
        """Raise CacheFullError unless `needed` entries fit into its blocks."""
        if needed > self.capacity:
            raise CacheFullError(
                f"{len(self.blocks)} blocks of {self.memory.block_size} tokens cannot hold {needed} entries; "
                "extend the sequence in its block pool first"
            )

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end = prefix + len(then)
        if not unbroken(prefix, then):
            self._move(then, range(prefix, end))
        if end < self._lengths[0]:  # no layer has more than the first
            self._lengths = [min(end, length) for length in self._lengths]

    def _move(self, entries: Sequence[int], to: Sequence[int]) -> None:
        size, device = self.memory.block_size, self.memory.heads.device
        blocks, offsets = (torch.tensor([[f(i) for i in at] for at in (entries, to)], device=device)
                           for f in (lambda i: self.blocks[i // size], lambda i: i % size))  # fmt: skip
        for buffer in self.memory.keys + self.memory.values:
            buffer[blocks[1], :, offsets[1]] = buffer[blocks[0], :, offsets[0]]


class PagedRows:
    """Several sequences that feed one token each, as one cache: a layer is one write and one read for all of them.

    CacheFullError if the blocks of one have no room for its token.
    """

    def __init__(self, caches: Sequence[PagedCache]):
        self.caches, self.memory = caches, caches[0].memory
        self.lengths = [cache.length() for cache in caches]
        for cache, length in zip(caches, self.lengths, strict=True):
            cache.check(length + 1)
        self.places = self.memory.places([cache.blocks for cache in caches], self.lengths, 1)

    @property
    def positions(self) -> list[int]:
        """Where the new token of each row stands in its text."""
        return [cache.positions([0])[0] for cache in self.caches]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values (H_kv, rows, d), a token of each row -> all (rows, H_kv, n · P, d), padding included."""
        self.memory.write(layer, self.places, keys, values)
        for cache in self.caches:
            cache._lengths[layer] += 1
        return self.memory.read(layer, self.places)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """(rows · H_kv, 1, n · P) to add to scores: 0 for what a row may see, its new token included, else -inf."""
        heads, device = len(self.memory.heads), self.memory.heads.device
        entries = len(self.places.pages) // (heads * self.places.rows) * self.memory.block_size
        hidden = torch.arange(entries, device=device) > torch.tensor(self.lengths, device=device)[:, None]
        bias = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
        return bias.repeat_interleave(heads, 0)[:, None]
