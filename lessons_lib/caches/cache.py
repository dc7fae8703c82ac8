"""KV caches of one sequence (lessons 02, 03): one that grows, and a static one of fixed capacity.

Both store keys and values as lists of tensors, one per layer. A cache owns its length and positions. `keep` rolls it
back after draft tokens were rejected.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Cache(ABC):
    """Keys and values of one sequence. most: maximum number of entries; None means limited only by memory."""

    most: int | None = None

    @abstractmethod
    def length(self, layer: int = -1) -> int:
        """Number of entries in a layer, by default the last one.

        After a forward pass over only the first layers, the last layer has fewer entries than the first.
        """

    @abstractmethod
    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        """Keep the first `prefix` entries and the entries with indices `then` (ascending). Drop all others.

        This rolls the cache back to the accepted path of a draft tree.
        """

    def branches(self, entries: int) -> bool:
        """Whether branches and side tokens may be fed until the cache has `entries` entries. If not, only chains."""
        return True

    def positions(self, offsets: Sequence[int], layer: int = -1) -> list[int]:
        """Positions of the next tokens to feed to a layer. Offset 0 is the first token that is not cached there yet."""
        return [self.length(layer) + offset for offset in offsets]


class CountedCache(Cache):
    """A cache with an entry count per layer, because a forward pass fills one layer after another."""

    def __init__(self, layers: int, length: int = 0):
        """length: entries that every layer already holds."""
        self._lengths = [length] * layers

    def length(self, layer: int = -1) -> int:
        return self._lengths[layer]

    def advance(self, count: int) -> None:
        """Add `count` to the length of every layer, after a forward pass that wrote the entries without `append`."""
        self._lengths = [self.length() + count] * len(self._lengths)


def is_contiguous(prefix: int, then: Sequence[int]) -> bool:
    """Whether the indices `then` directly continue the first `prefix` entries, so that `keep` moves no data."""
    return not then or list(then) == list(range(prefix, prefix + len(then)))


def causal_mask(count: int, entries: int, device=None) -> Tensor:
    """Causal mask (T, S) bool for the T newest of S tokens: each attends to itself and all before it.

    The diagonal ends in the lower right corner.
    """
    return torch.ones(count, entries, dtype=torch.bool, device=device).tril(entries - count)


class ContiguousCache(CountedCache):
    """A growing cache: per layer two buffers (H_kv, capacity, d). Keys are stored after RoPE."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype, device="cpu", capacity: int = 16):
        """capacity: entries to allocate at first. A full buffer is replaced by one of at least twice the size."""
        super().__init__(layers)
        new = lambda: torch.zeros(kv_heads, max(1, capacity), head_dim, dtype=dtype, device=device)  # noqa: E731
        self.keys = [new() for _ in range(layers)]
        self.values = [new() for _ in range(layers)]

    @property
    def capacity(self) -> int:
        """Entries that fit into the allocated buffers."""
        return self.keys[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, used or not."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (H_kv, T, d) of T new tokens -> all entries of that layer (H_kv, S + T, d)."""
        start = self._lengths[layer]
        end = start + keys.shape[1]
        if end > self.keys[layer].shape[1]:
            self._grow(layer, end)
        self.keys[layer][:, start:end] = keys
        self.values[layer][:, start:end] = values
        self._lengths[layer] = end
        return self.keys[layer][:, :end], self.values[layer][:, :end]

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end, broken = prefix + len(then), not is_contiguous(prefix, then)
        for layer, buffers in enumerate(zip(self.keys, self.values, strict=True)):
            if broken and self._lengths[layer] > prefix:  # gather the accepted entries right after the prefix
                index = torch.tensor(then, device=buffers[0].device)
                for buffer in buffers:
                    buffer[:, prefix:end] = buffer.index_select(1, index)
            self._lengths[layer] = min(end, self._lengths[layer])

    def _grow(self, layer: int, needed: int) -> None:
        for buffers in (self.keys, self.values):
            old = buffers[layer]
            buffers[layer] = old.new_zeros(old.shape[0], max(needed, 2 * old.shape[1]), old.shape[2])
            buffers[layer][:, : old.shape[1]] = old


class CacheFullError(ValueError):
    """The cache has no room, or no blocks, for the new tokens."""


class StaticCache(ContiguousCache):
    """A contiguous cache of fixed capacity, so that compiled code sees constant shapes.

    Eager forward passes use it directly, compiled ones through `StaticBuffers`. A full cache raises CacheFullError.
    """

    @property
    def most(self) -> int:
        return self.capacity

    def new_entries(self, width: int) -> Tensor:
        """Indices (width,) of the entries for the new tokens and the padding after them."""
        start = self.length()
        if start + width > self.capacity:
            self._grow(0, start + width)
        return torch.arange(start, start + width, device=self.keys[0].device)

    def mask(self, allow: Tensor | None, count: int, width: int) -> Tensor:
        """Attention mask (width, capacity) bool over the whole buffer, from `allow` (T, S + T) or causal if None.

        count: T. Padding tokens attend to entry 0 alone, because a softmax over nothing is NaN.
        """
        start, device = self.length(), self.keys[0].device
        if allow is None:
            entries = torch.arange(self.capacity, device=device)
            return entries <= torch.arange(start, start + width, device=device)[:, None]
        mask = torch.zeros(width, self.capacity, dtype=torch.bool, device=device)
        mask[:count, : allow.shape[1]] = allow
        mask[count:, 0] = True
        return mask

    def _grow(self, layer: int, needed: int) -> None:
        raise CacheFullError(
            f"the static cache holds {self.capacity} tokens and {needed} are needed; make it larger "
            "(`context=` of the compiled target) or generate fewer tokens"
        )


@dataclass
class StaticBuffers:
    """The buffers of a StaticCache as one compiled forward pass uses them. entries (T,): indices of the new ones."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    entries: Tensor

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys, values (H_kv, T, d) at `entries` -> the whole buffers (H_kv, capacity, d)."""
        self.keys[layer].index_copy_(1, self.entries, keys)
        self.values[layer].index_copy_(1, self.entries, values)
        return self.keys[layer], self.values[layer]
