"""The memory of paged caches (lesson 05): blocks that any sequence may use, read together for many sequences.

A block holds P tokens of all heads, each head's part (a page) in one piece: collecting the pages of many sequences
then gives keys and values that matrix products take as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
