"""KV caches of one sequence (lessons 02, 03): growing, and static with a fixed capacity.

A cache owns its length and positions. `keep` drops what was rejected; both kinds are lists of tensors, one per layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Cache(ABC):
    """Keys and values of one sequence. most: entries it can hold, None for as many as there is memory for."""

    most: int | None = None

    @abstractmethod
    def length(self, layer: int = -1) -> int:
        """Entries kept in a layer; without one, in the last layer (a partial forward leaves it behind)."""

    @abstractmethod
    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        """Keep the first `prefix` entries, then those numbered `then` (ascending); the rest leaves no trace.

        ValueError, where a cache can tell, for entries that it does not have.
        """

    def branches(self, entries: int) -> bool:
        """Whether branches and side tokens may be fed until it has so many entries; if not, chains only."""
        return True

    def positions(self, offsets: Sequence[int]) -> list[int]:
        """Positions of tokens about to be fed, offset 0 being the first one the cache lacks."""
        return [self.length() + offset for offset in offsets]


class CountedCache(Cache):
    """A cache that counts the entries of every layer, as a forward pass fills one layer after another."""

    def __init__(self, layers: int, length: int = 0):
        """length: entries that every layer has already."""
        self._lengths = [length] * layers

    def length(self, layer: int = -1) -> int:
        return self._lengths[layer]

    def advance(self, count: int) -> None:
        """Count `count` entries, written to its buffers or blocks by a compiled step, as present in all layers."""
        self._lengths = [self.length() + count] * len(self._lengths)


def unbroken(prefix: int, then: Sequence[int]) -> bool:
    """Whether entries numbered `then` follow the first `prefix` ones without a gap: keeping them moves nothing."""
    return not then or list(then) == list(range(prefix, prefix + len(then)))


def causal_mask(count: int, entries: int, device=None) -> Tensor:
    """(T, S): the T newest of S entries, each seeing itself and all before it (aligned to the lower right)."""
    return torch.ones(count, entries, dtype=torch.bool, device=device).tril(entries - count)


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


class CacheFullError(ValueError):
    """More tokens than a cache was made for, or was given blocks for."""


class StaticCache(ContiguousCache):
    """A contiguous cache of fixed capacity; eager forward passes use it as such, compiled ones through `Slots`.

    CacheFullError for an `append` of more entries than are left.
    """

    @property
    def most(self) -> int:
        return self.capacity

    def slots(self, width: int) -> Tensor:
        """(width,) entries that new tokens and the padding behind them are written to. CacheFullError without room."""
        start = self.length()
        if start + width > self.capacity:
            self._grow(0, start + width)
        return torch.arange(start, start + width, device=self.keys[0].device)

    def mask(self, allow: Tensor | None, count: int, width: int) -> Tensor:
        """(width, capacity): `allow` (T, S + T), or causal, spread over the whole buffer; padding sees entry 0."""
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
class Slots:
    """Static buffers as one forward pass sees them: new entries go to `slots` (T,), attention gets the whole buffer."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    slots: Tensor

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values (H_kv, T, d) -> whole buffers (H_kv, capacity, d)."""
        self.keys[layer].index_copy_(1, self.slots, keys)
        self.values[layer].index_copy_(1, self.slots, values)
        return self.keys[layer], self.values[layer]
