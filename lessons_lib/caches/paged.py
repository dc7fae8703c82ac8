"""Paged KV cache (lesson 05): all sequences share one memory of blocks; each has a block table.

Entry i of a sequence is in block table[i // P] at offset i % P, where P is the block size. Every backend uses
this layout. PagedCache serves one sequence; Pages serves a batch of sequences that feed one token each.

Source: PagedAttention, Kwon et al. 2023 (arXiv 2309.06180).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.caches.cache import CacheFullError, CountedCache, is_contiguous
from lessons_lib.caches.sizes import blocks_for


class PagedMemory:
    """The blocks of all sequences: per layer keys and values (blocks + 1, H_kv, P, d).

    The last block is the null block. No sequence owns it: it pads block tables, and padding tokens are written to it.
    Its entries are always finite.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype, device="cpu", *, blocks: int, block_size: int):
        shape = blocks + 1, kv_heads, block_size, head_dim
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.block_size, self.null_block, self.device = block_size, blocks, self.keys[0].device
        self.owner_mark: object | None = None  # see BlockPool.attach

    @property
    def nbytes(self) -> int:
        """Bytes allocated, the null block included."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def padded(self, tables: Sequence[Sequence[int]], at_least: int = 1) -> list[list[int]]:
        """Block tables padded with the null block to the length of the longest, and to `at_least` blocks."""
        longest = max(at_least, *map(len, tables))
        return [[*table, *[self.null_block] * (longest - len(table))] for table in tables]

    def to_clear(self, table: Sequence[int], start: int, end: int) -> list[int]:
        """The block that entries `start` to `end` start to fill and leave partly empty: a list of one block, or empty.

        The caller clears it first. Attention reads the whole block, and a NaN that another sequence left there would
        pass through the mask: 0 · NaN is NaN.
        """
        last, rest = divmod(end, self.block_size)
        return [table[last]] if rest and start <= last * self.block_size else []

    def clear(self, blocks: Sequence[int], layer: int | None = None) -> None:
        """Fill blocks with zeros in one layer, by default in all."""
        if blocks:
            at = torch.tensor(blocks, device=self.device)
            layers = range(len(self.keys)) if layer is None else [layer]
            for i in layers:
                self.keys[i].index_fill_(0, at, 0)
                self.values[i].index_fill_(0, at, 0)

    def copy(self, source: int, to: int) -> None:
        """Copy one block in all layers (copy-on-write: before a sequence writes to a shared block)."""
        for buffer in self.keys + self.values:
            buffer[to] = buffer[source]


class PagedCache(CountedCache):
    """Keys and values of one sequence, in the blocks of its block table.

    The block pool owns the table and may change it between forward passes.
    """

    def __init__(self, memory: PagedMemory, blocks: list[int], length: int = 0):
        """blocks: the block table. length: entries that the blocks already hold, from a shared prefix."""
        super().__init__(len(memory.keys), length)
        self.memory, self.blocks = memory, blocks
        self._mapped: tuple[tuple, tuple] = (), ()  # of `_slot_mapping`: its arguments and result of the last call

    @property
    def capacity(self) -> int:
        """Entries that fit into its blocks."""
        return len(self.blocks) * self.memory.block_size

    @property
    def most(self) -> int:
        """Maximum number of entries: the capacity, because the cache does not allocate blocks by itself."""
        return self.capacity

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (H_kv, T, d) of T new tokens -> all entries of that layer (H_kv, S + T, d).

        CacheFullError if the blocks have no room.
        """
        count, memory = keys.shape[1], self.memory
        start, used, to_clear = self.room(count, layer)
        blocks, offsets, table = self._slot_mapping(start, count, used)
        memory.clear(to_clear, layer)
        memory.keys[layer][blocks, :, offsets] = keys.transpose(0, 1)
        memory.values[layer][blocks, :, offsets] = values.transpose(0, 1)
        self._lengths[layer] += count
        if start == 0:  # a new prompt attends only to itself: nothing to gather
            return keys, values
        # gather the blocks (n, H_kv, P, d) of the table into contiguous entries (H_kv, S + T, d)
        collected = (buffer[layer][table].transpose(0, 1).flatten(1, 2) for buffer in (memory.keys, memory.values))
        keys, values = (entries[:, : start + count] for entries in collected)
        return keys, values

    def room(self, count: int, layer: int = -1) -> tuple[int, list[int], list[int]]:
        """Where `count` new entries go -> (index of the first, blocks that hold all entries, block to clear first).

        The third is a list of one block or empty; see `PagedMemory.to_clear`. CacheFullError without room.
        """
        start, end = self.length(layer), self.length(layer) + count
        if end > self.capacity:
            raise CacheFullError(
                f"{len(self.blocks)} blocks of {self.memory.block_size} tokens cannot hold {end} entries; "
                "extend the sequence in its block pool first"
            )
        used = self.blocks[: blocks_for(end, self.memory.block_size)]
        return start, used, self.memory.to_clear(self.blocks, start, end)

    def _slot_mapping(self, start: int, count: int, used: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Blocks and offsets (T,) of the new entries (vLLM: slot mapping), and `used` as a tensor.

        Computed once for all layers.
        """
        given = start, count, *used
        if self._mapped[0] != given:
            table = torch.tensor(used, device=self.memory.device)
            self._mapped = given, (*self._places(range(start, start + count)), table)
        return self._mapped[1]

    def _places(self, entries: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Blocks and offsets (n,) of entries."""
        size, device = self.memory.block_size, self.memory.device
        blocks = torch.tensor([self.blocks[i // size] for i in entries], device=device)
        return blocks, torch.tensor([i % size for i in entries], device=device)

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end = prefix + len(then)
        if not is_contiguous(prefix, then):
            (blocks, offsets), (to_blocks, to_offsets) = self._places(then), self._places(range(prefix, end))
            for buffer in self.memory.keys + self.memory.values:
                buffer[to_blocks, :, to_offsets] = buffer[blocks, :, offsets]
        if end < self._lengths[0]:  # no layer has more than the first
            self._lengths = [min(end, length) for length in self._lengths]


@dataclass
class Pages:
    """The paged caches of a batch as one forward pass uses them: a row is a sequence that feeds one token.

    Only tensors, so that the pass can be compiled. positions (rows,): of the new tokens. tables (rows, n): padded block
    tables. keys, values: the buffers of a PagedMemory.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    positions: Tensor
    tables: Tensor

    def __post_init__(self):
        size, rows = self.keys[0].shape[-2], torch.arange(len(self.positions), device=self.positions.device)
        # where each new token goes
        self.blocks, self.offsets = self.tables[rows, self.positions // size], self.positions % size

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys, values (H_kv, rows, d), one token per row -> all blocks of each row (rows, n, H_kv, P, d)."""
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            buffer[self.blocks, :, self.offsets] = new.transpose(0, 1)
        used = self.tables.flatten()  # index_select copies whole blocks: faster than indexing by `tables`
        keys, values = (buffer.index_select(0, used) for buffer in (self.keys[layer], self.values[layer]))
        return keys.unflatten(0, self.tables.shape), values.unflatten(0, self.tables.shape)

    def visible(self) -> Tensor:
        """Attention mask (rows, n, P) bool: a row attends to its entries, the new one included, and not to padding."""
        size = self.keys[0].shape[-2]
        entries = torch.arange(self.tables.shape[1] * size, device=self.tables.device).view(-1, size)
        return entries <= self.positions[:, None, None]
