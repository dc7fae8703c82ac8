"""The key-value cache of one sequence (lesson 02): preallocated buffers and one length per layer.

The cache alone knows how long it is, at which position the next token sits and which entries stay.
Buffers double when they are full, so that growing copies every entry about once in total; growing by
concatenation, as dynamic caches often do, copies all of them at every step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.caches.cache import CountedCache, unbroken


class ContiguousCache(CountedCache):
    """Keys and values of one sequence: per layer two buffers (H_kv, capacity, d), rotated keys."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype, device="cpu", capacity: int = 16):
        """capacity: entries to allocate at once; more are made when they are needed."""
        super().__init__(layers)
        new = lambda: torch.zeros(kv_heads, max(1, capacity), head_dim, dtype=dtype, device=device)  # noqa: E731
        self.keys = [new() for _ in range(layers)]
        self.values = [new() for _ in range(layers)]

    @property
    def capacity(self) -> int:
        """Entries that fit without a new buffer."""
        return self.keys[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, used or not."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (H_kv, T, d) of T new tokens -> all entries of that layer (H_kv, S + T, d)."""
        start = self._lengths[layer]
        end = start + keys.shape[1]
        if end > self.keys[layer].shape[1]:
            self._grow(layer, end)
        self.keys[layer][:, start:end] = keys
        self.values[layer][:, start:end] = values
        self._lengths[layer] = end
        return self.keys[layer][:, :end], self.values[layer][:, :end]

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end, broken = prefix + len(then), not unbroken(prefix, then)
        for layer, buffers in enumerate(zip(self.keys, self.values, strict=True)):
            if broken and self._lengths[layer] > prefix:
                index = torch.tensor(then, device=buffers[0].device)
                for buffer in buffers:
                    buffer[:, prefix:end] = buffer.index_select(1, index)
            self._lengths[layer] = min(end, self._lengths[layer])

    def _grow(self, layer: int, needed: int) -> None:
        for buffers in (self.keys, self.values):
            old = buffers[layer]
            buffers[layer] = old.new_zeros(old.shape[0], max(needed, 2 * old.shape[1]), old.shape[2])
            buffers[layer][:, : old.shape[1]] = old
