"""Paged KV cache (lesson 05): sequences share one memory of blocks and find theirs through a block table.

Entry i of a sequence lies in block table[i // P] at offset i % P; P is the block size. That is its slot. Every backend
uses the same layout. A sequence alone is a PagedCache; many that feed one token each are Pages.

Source: PagedAttention, Kwon et al. 2023 (arXiv 2309.06180).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessons_lib.caches.cache import CacheFullError, CountedCache, unbroken
from lessons_lib.caches.sizes import blocks_for


class PagedMemory:
    """The blocks of all sequences: per layer keys and values (blocks + 1, H_kv, P, d).

    The last block is the null block. No sequence owns it: it pads block tables, and rows that no request needs write to
    it. Its entries are finite.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype, device="cpu", *, blocks: int, block_size: int):
        shape = blocks + 1, kv_heads, block_size, head_dim
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.block_size, self.null_block, self.device = block_size, blocks, self.keys[0].device
        self.owner_mark: object | None = None  # see serving.block_pool.Memory

    @property
    def nbytes(self) -> int:
        """Bytes allocated, the null block included."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def padded(self, tables: Sequence[Sequence[int]], at_least: int = 1) -> list[list[int]]:
        """Block tables padded with the null block to the longest, and to at least so many blocks."""
        longest = max(at_least, *map(len, tables))
        return [[*table, *[self.null_block] * (longest - len(table))] for table in tables]

    def begun(self, table: Sequence[int], start: int, end: int) -> list[int]:
        """The block that entries `start` to `end` begin and do not fill, if there is one.

        It has to be cleared. What another sequence left there, perhaps a NaN, is read too, and a masked NaN is still
        NaN: 0 · NaN.
        """
        last, rest = divmod(end, self.block_size)
        return [table[last]] if rest and start <= last * self.block_size else []

    def clear(self, blocks: Sequence[int], layer: int | None = None) -> None:
        """Zero blocks in one layer, or in all."""
        if blocks:
            at = torch.tensor(blocks, device=self.device)
            layers = range(len(self.keys)) if layer is None else [layer]
            for i in layers:
                self.keys[i].index_fill_(0, at, 0)
                self.values[i].index_fill_(0, at, 0)

    def copy(self, source: int, to: int) -> None:
        """Copy one block: before a sequence writes into one that others read, too."""
        for buffer in self.keys + self.values:
            buffer[to] = buffer[source]


class SlotMapping(NamedTuple):
    """Where a pass over one sequence writes and reads: new entry t at `offsets[t]` of `blocks[t]`, each (T,).

    table (n,): the blocks up to the last entry's. begun: the block to clear first, if there is one.
    """

    blocks: Tensor
    offsets: Tensor
    table: Tensor
    begun: list[int]


class PagedCache(CountedCache):
    """Keys and values of one sequence in the blocks of its table. The table's owner may change it between passes."""

    def __init__(self, memory: PagedMemory, blocks: list[int], length: int = 0):
        """blocks: the block table; length: entries that it holds already, when a prefix is shared."""
        super().__init__(len(memory.keys), length)
        self.memory, self.blocks = memory, blocks
        self._mapping: tuple[tuple, SlotMapping] | None = None

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
        to, memory = self.mapping(start, count), self.memory
        memory.clear(to.begun, layer)
        memory.keys[layer][to.blocks, :, to.offsets] = keys.transpose(0, 1)
        memory.values[layer][to.blocks, :, to.offsets] = values.transpose(0, 1)
        self._lengths[layer] += count
        if start == 0:  # a prompt sees itself alone: nothing to collect
            return keys, values
        collected = (buffer[layer][to.table].transpose(0, 1).flatten(1, 2) for buffer in (memory.keys, memory.values))
        keys, values = (entries[:, : start + count] for entries in collected)
        return keys, values

    def mapping(self, start: int, count: int) -> SlotMapping:
        """The slots of `count` entries after the first `start`; worked out once for all layers. CacheFullError too."""
        self.check(start + count)
        key = start, count, *self.blocks
        if self._mapping is None or self._mapping[0] != key:
            size, end, new = self.memory.block_size, start + count, dict(device=self.memory.device)
            blocks = torch.tensor([self.blocks[i // size] for i in range(start, end)], **new)
            offsets = torch.tensor([i % size for i in range(start, end)], **new)
            table = torch.tensor(self.blocks[: blocks_for(end, size)], **new)
            begun = self.memory.begun(self.blocks, start, end)
            self._mapping = key, SlotMapping(blocks, offsets, table, begun)
        return self._mapping[1]

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
        size, device = self.memory.block_size, self.memory.device
        blocks, offsets = (torch.tensor([[f(i) for i in at] for at in (entries, to)], device=device)
                           for f in (lambda i: self.blocks[i // size], lambda i: i % size))  # fmt: skip
        for buffer in self.memory.keys + self.memory.values:
            buffer[blocks[1], :, offsets[1]] = buffer[blocks[0], :, offsets[0]]


@dataclass
class Pages:
    """Many rows of one token each, as one forward pass sees their blocks: tensors alone, so that it can be compiled.

    positions (rows,): of the new tokens. tables (rows, n): padded block tables. keys, values: a PagedMemory's.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    positions: Tensor
    tables: Tensor

    def __post_init__(self):
        size, rows = self.keys[0].shape[-2], torch.arange(len(self.positions), device=self.positions.device)
        self.slots = self.tables[rows, self.positions // size], self.positions % size  # block and offset of each token

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys, values (H_kv, rows, d), a token of each row -> all of them (rows, n, H_kv, P, d)."""
        block, offset = self.slots
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            buffer[block, :, offset] = new.transpose(0, 1)
        used = self.tables.flatten()  # index_select copies whole blocks: less time than indexing by `tables`
        keys, values = (buffer.index_select(0, used) for buffer in (self.keys[layer], self.values[layer]))
        return keys.unflatten(0, self.tables.shape), values.unflatten(0, self.tables.shape)

    def visible(self) -> Tensor:
        """(rows, n, P) bool: the entries that a row may see, its new one included; not those of padding."""
        size = self.keys[0].shape[-2]
        entries = torch.arange(self.tables.shape[1] * size, device=self.tables.device).view(-1, size)
        return entries <= self.positions[:, None, None]
