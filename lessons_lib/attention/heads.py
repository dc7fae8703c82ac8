"""Inputs of attention (lesson 04): q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v), and the causal mask.

Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): g = H / H_kv query heads share one KV head. The shared
keys and values are expanded as views, never copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sight:
    """Which of S keys each of T queries attends to: all, or the causal ones.

    Causal is aligned to the lower right: the last query attends to all S keys, the one before it to S - 1. With fewer
    keys than queries, the first queries attend to none.
    """

    queries: int
    keys: int
    causal: bool = False

    def reaches(self, rows: range) -> int:
        """Number of keys that the last of these query rows may attend to: 0 to S."""
        return max(self.keys - self.queries + rows.stop, 0) if self.causal else self.keys

    def tile(self, rows: range, columns: range, device: torch.device | str = "cpu") -> Tensor | None:
        """The mask of one tile: (rows, columns) bool, True = may attend; None if nothing is masked."""
        if columns.stop <= self.reaches(range(rows.start, rows.start + 1)):
            return None  # the first query attends to the whole tile, so all queries do
        last = torch.arange(rows.start, rows.stop, device=device)[:, None] + self.keys - self.queries
        return torch.arange(columns.start, columns.stop, device=device) <= last


def prepared(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check the inputs and group the heads: q (H_kv, g, T, d), keys (H_kv, g, S, d), values (H_kv, g, S, d_v).

    All are in float32 or better, the precision in which kernels accumulate.
    """
    check(q, keys, values)
    group = q.shape[0] // keys.shape[0]
    exact = torch.promote_types(q.dtype, torch.float32)
    q, keys, values = (x.to(exact) for x in (q, keys, values))
    keys, values = (x[:, None].expand(-1, group, -1, -1) for x in (keys, values))
    return q.unflatten(0, (len(keys), group)), keys, values


def check(q: Tensor, keys: Tensor, values: Tensor) -> None:
    """Check that attention can be computed on these inputs."""
    shapes = f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}"
    if not q.dim() == keys.dim() == values.dim() == 3:
        raise ValueError(f"attention takes (heads, tokens, dim), without a batch; here are {shapes}")
    if q.shape[2] != keys.shape[2] or keys.shape[:2] != values.shape[:2]:
        raise ValueError(f"q and keys need one dim, keys and values one number of heads and tokens; here are {shapes}")
    if q.shape[0] % keys.shape[0]:
        raise ValueError(f"{q.shape[0]} query heads cannot share {keys.shape[0]} KV heads evenly; take a divisor")
    kinds = dict.fromkeys(f"{x.dtype} on {x.device}" for x in (q, keys, values))
    if not q.is_floating_point() or len(kinds) > 1:
        raise ValueError(f"q, keys and values need one floating dtype and one device, not {', '.join(kinds)}")


def spans(length: int, block: int) -> Iterator[range]:
    """Split 0 .. length into pieces of `block`, the last one possibly shorter: 5, 2 -> 0-1, 2-3, 4."""
    return (range(start, min(start + block, length)) for start in range(0, length, block))
