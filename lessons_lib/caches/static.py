"""The static cache (lesson 03): buffers that never move or grow, so that one compiled graph serves every step.

Only the shapes are fixed; how much of them is filled is data: slots say where new entries go and a mask
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
    """Static buffers as one forward sees them: new entries go to `slots` (T,), attention gets the whole buffer."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    slots: Tensor

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values (H_kv, T, d) -> whole buffers (H_kv, capacity, d)."""
        self.keys[layer].index_copy_(1, self.slots, keys)
        self.values[layer].index_copy_(1, self.slots, values)
        return self.keys[layer], self.values[layer]
