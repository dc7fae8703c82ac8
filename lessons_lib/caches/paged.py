"""The paged KV cache (lesson 05): sequences share one memory of blocks and find theirs through a block table.

Source: PagedAttention, Kwon et al. 2023 (arXiv 2309.06180).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.caches.cache import CacheFullError, CountedCache, unbroken
from lessons_lib.caches.sizes import blocks_for


@dataclass
class Places:
    """Where one forward writes and reads: entry t goes to block `blocks[t]` at `offsets[t]` (T,).

    begun: blocks whose first entry is among the new ones and that they do not fill. pages: (rows · H_kv · n,) what
    attention reads, a page being one head's part of a block.
    """

    blocks: Tensor
    offsets: Tensor
    begun: Tensor
    pages: Tensor
    rows: int


class PagedMemory:
    """The blocks of all sequences: per layer keys and values (blocks + 1, H_kv, P, d), P = block_size tokens.

    The last block belongs to nobody and is finite: short rows are padded with it when rows are read together.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype, device="cpu", *, blocks: int, block_size: int):
        shape = blocks + 1, kv_heads, block_size, head_dim
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.block_size, self.padding = block_size, blocks
        self.heads = torch.arange(kv_heads, device=device)[:, None]
        self.owner_mark: object | None = None  # see serving.pool.Memory

    @property
    def nbytes(self) -> int:
        """Bytes allocated, the padding block included."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def places(self, tables: Sequence[Sequence[int]], starts: Sequence[int], count: int) -> Places:
        """Places of `count` new entries behind the first `starts[r]` of every row r.

        tables: for each row its blocks in order. IndexError for a row whose blocks have no room for its entries.
        """
        size, device = self.block_size, self.heads.device
        ends = [start + count for start in starts]
        at = [(table, i) for table, start, end in zip(tables, starts, ends, strict=True) for i in range(start, end)]
        used = [blocks_for(end, size) for end in ends]
        begun = [block for row in zip(tables, starts, ends, strict=True) for block in self.begun(*row)]
        padded = self.padded([table[:n] for table, n in zip(tables, used, strict=True)])
        new = lambda numbers: torch.tensor(numbers, dtype=torch.long, device=device)  # noqa: E731
        pages = new(padded)[:, None] * len(self.heads) + self.heads  # (rows, H_kv, n)
        blocks, offsets = new([table[i // size] for table, i in at]), new([i % size for _, i in at])
        return Places(blocks, offsets, new(begun), pages.flatten(), len(tables))

    def begun(self, table: Sequence[int], start: int, end: int) -> list[int]:
        """The block that entries from `start` on begin and, up to `end`, do not fill, if there is one."""
        last, rest = divmod(end, self.block_size)
        return [table[last]] if rest and start <= last * self.block_size else []

    def padded(self, tables: Sequence[Sequence[int]], at_least: int = 1) -> list[list[int]]:
        """Lists of blocks, all as long as the longest and no shorter than `at_least`."""
        longest = max(at_least, *map(len, tables))
        return [[*table, *[self.padding] * (longest - len(table))] for table in tables]

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks in every layer, as `write` does by itself where some are begun."""
        if blocks:
            at = torch.tensor(blocks, device=self.heads.device)
            for buffer in self.keys + self.values:
                buffer.index_fill_(0, at, 0)

    def write(self, layer: int, places: Places, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (H_kv, T, d) of the new entries."""
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            if len(places.begun):  # what another sequence left there, a NaN perhaps, is read behind a mask: 0 · NaN
                buffer.index_fill_(0, places.begun, 0)
            buffer[places.blocks, :, places.offsets] = new.transpose(0, 1)

    def read(self, layer: int, places: Places) -> tuple[Tensor, Tensor]:
        """All entries -> keys and values (rows, H_kv, n · P, d), as many blocks as the longest row has."""
        shape = places.rows, len(self.heads), -1, self.keys[layer].shape[-1]
        both = (buffer.flatten(0, 1).index_select(0, places.pages) for buffer in (self.keys[layer], self.values[layer]))
        keys, values = (pages.view(shape) for pages in both)
        return keys, values

    def copy(self, source: int, to: int) -> None:
        """Copy one block: before a sequence writes into one that others read, too."""
        for buffer in self.keys + self.values:
            buffer[to] = buffer[source]


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
