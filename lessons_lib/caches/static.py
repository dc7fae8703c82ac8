"""The static cache (lesson 03): buffers that do not grow with every token, so that one compiled graph serves all steps.

Shapes do not say how much of them is filled; that is data: slots say where new entries go and a mask
says what may be seen. A compiled step receives the buffers as arguments, so every prompt may bring its own.
After gpt-fast (PyTorch 2023, https://pytorch.org/blog/accelerating-generative-ai-2/).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.caches.contiguous import ContiguousCache


class CacheFullError(ValueError):
    """More tokens than a cache was made for, or was given blocks for."""


class StaticCache(ContiguousCache):
    """A contiguous cache of fixed capacity; eager forwards use it as such, compiled ones through `Slots`.

    most: entries up to which it may grow all the same, for compiled code that leaves the length open; None: it may not.
    CacheFullError for an `append` of more entries than there can be.
    """

    def __init__(self, *sizes, capacity: int = 16, most: int | None = None, **rest):
        super().__init__(*sizes, capacity=capacity, **rest)
        self._most = most or self.capacity

    @property
    def most(self) -> int:
        return self._most

    def slots(self, width: int) -> Tensor:
        """(width,) entries that new tokens and the padding behind them are written to. CacheFullError without room."""
        start = self.length()
        if start + width > self.capacity:
            for layer in range(len(self.keys)):
                self._grow(layer, start + width)
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
        if needed > self.most:
            raise CacheFullError(
                f"the static cache holds {self.most} tokens and {needed} are needed; make it larger "
                "(`context=` of the compiled target) or generate fewer tokens"
            )
        super()._grow(layer, needed)


@dataclass
class Slots:
    """Static buffers as one forward sees them: new entries go to `slots` (T,), attention gets the whole buffer."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    slots: Tensor

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values (H_kv, T, d) -> whole buffers (H_kv, capacity, d)."""
        self.keys[layer].index_copy_(1, self.slots, keys)
        self.values[layer].index_copy_(1, self.slots, values)
        return self.keys[layer], self.values[layer]
