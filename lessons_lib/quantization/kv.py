"""Keys and values in few bits (lesson 10): keys per channel, values per token, the newest tokens as they are.

KIVI (Liu et al. 2024, arXiv 2402.02750): outliers of keys stay in the same channels, so a group is one channel over
G tokens; values have no such channels, so a group is G channels of one token, whose error stays with that token.
Levels run from a group's minimum to its maximum: bits + 32/G bits an element (`caches.sizes.quantized_bits`).

KIVI empties the residual of its keys when it is full; here it always holds the newest R tokens at least, so that
a rejected guess can be taken back. Codes, once written, never change. Every read gives the whole history back in
full precision: memory at rest falls, the peak of a step and its time do not.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache
from lessons_lib.quantization.formats import Grid, Integers, check_bits, check_values, quantize

GROUP, RESIDUAL = 32, 128  # KIVI's G and R


def quantize_keys(keys: Tensor, bits: int = 2, group: int = GROUP) -> Integers:
    """(H_kv, S, d), S a multiple of the group G -> integers (S/G, H_kv, d, G), a scale and minimum for each channel.

    ValueError for another shape, bits that do not exist, and keys that are not finite.
    """
    return quantize(_by_group(keys, group).transpose(2, 3), bits, group, "minimum")


def quantize_values(values: Tensor, bits: int = 2, group: int = GROUP, tokens: int = GROUP) -> Integers:
    """(H_kv, S, d), d a multiple of the group G -> integers (S/tokens, H_kv, tokens, d), d/G scales for each token.

    ValueError for another shape, bits that do not exist, and values that are not finite.
    """
    return quantize(_by_group(values, tokens), bits, group, "minimum")


def restore_keys(keys: Integers) -> Tensor:
    """The keys (H_kv, S, d) of `quantize_keys`."""
    return keys.dequantize().permute(1, 0, 3, 2).flatten(1, 2)


def restore_values(values: Integers) -> Tensor:
    """The values (H_kv, S, d) of `quantize_values`."""
    return values.dequantize().transpose(0, 1).flatten(1, 2)


def joined(old: Integers | None, new: Integers) -> Integers:
    """Old entries (n, ...), then new ones (m, ...) of `quantize_keys` or `_values` -> (n + m, ...); no code changes."""
    if old is None:
        return new
    shape = torch.Size((old.shape[0] + new.shape[0], *new.shape[1:]))
    scales, lows = (torch.cat([getattr(x.grid, name) for x in (old, new)]) for name in ("scales", "lows"))
    return Integers(shape, new.dtype, torch.cat([old.codes, new.codes]), Grid(new.grid.bits, scales, lows=lows))


class QuantizedCache(Cache):
    """Keys and values of one sequence, all but the newest in few bits; what our decoder reads.

    group: tokens of a key's group and channels of a value's. residual: newest tokens that always stay as they are.
    A forward sees its own tokens as they are, however many; they are rounded when it has got its keys and values.
    """

    def __init__(self, layers: int, bits: int = 2, group: int = GROUP, residual: int = RESIDUAL):
        """Raises ValueError for bits that do not exist, a group that is no multiple of 8, and a residual below 0."""
        check_bits(bits)
        if group < 8 or group % 8 or residual < 0:
            raise ValueError(f"a group is a multiple of 8 and a residual at least 0, not {group} and {residual}")
        self.bits, self.group, self.residual = bits, group, residual
        self.rounded: list[tuple[Integers, Integers] | None] = [None] * layers
        self.newest: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def length(self, layer: int = -1) -> int:
        return self.rounded_length(layer) + (0 if self.newest[layer] is None else self.newest[layer][0].shape[1])

    def rounded_length(self, layer: int = -1) -> int:
        """Tokens of a layer that are kept in few bits."""
        return 0 if self.rounded[layer] is None else self.rounded[layer][0].shape[0] * self.group

    @property
    def nbytes(self) -> int:
        """Bytes of all codes, scales, minima and newest tokens."""
        return sum(part.nbytes for pair in (*self.rounded, *self.newest) if pair is not None for part in pair)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys and values (H_kv, T, d) of T new tokens -> all entries of that layer (H_kv, S + T, d).

        ValueError for any that are not finite, and for a d that the group does not divide.
        """
        check_values(keys, "a block of keys")
        check_values(values, "a block of values")
        if self.newest[layer] is not None:
            keys, values = (torch.cat(pair, 1) for pair in zip(self.newest[layer], (keys, values), strict=True))
        old = self.rounded[layer]
        seen = (keys, values)
        if old is not None:
            seen = torch.cat([restore_keys(old[0]), keys], 1), torch.cat([restore_values(old[1]), values], 1)
        self._round(layer, keys, values)
        return seen

    def _round(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Round whole groups of the oldest tokens as long as `residual` tokens are left."""
        count = max(0, keys.shape[1] - self.residual) // self.group * self.group
        if count:
            old_keys, old_values = self.rounded[layer] or (None, None)
            new = quantize_keys(keys[:, :count], self.bits, self.group)
            more = quantize_values(values[:, :count], self.bits, self.group, self.group)
            self.rounded[layer] = joined(old_keys, new), joined(old_values, more)
        self.newest[layer] = keys[:, count:].clone(), values[:, count:].clone()  # else the whole block stays alive

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        """Keep entries among the newest; raises ValueError for a prefix that ends in the rounded ones."""
        for layer, newest in enumerate(self.newest):
            first = self.rounded_length(layer)
            if newest is None or prefix >= self.length(layer):
                continue
            if prefix < first:
                raise ValueError(f"{first} tokens are rounded and cannot be cut to {prefix}; use a larger residual")
            index = torch.tensor([*range(prefix - first), *(i - first for i in then)], device=newest[0].device)
            self.newest[layer] = tuple(x.index_select(1, index.long()) for x in newest)


def _by_group(x: Tensor, tokens: int) -> Tensor:
    """(H_kv, S, d) -> (S/tokens, H_kv, tokens, d)."""
    if x.ndim != 3 or tokens < 1 or x.shape[1] % tokens:
        raise ValueError(f"{tuple(x.shape)} is not (H_kv, S, d) with S a multiple of {tokens}; keep the rest as it is")
    return x.unflatten(1, (-1, tokens)).transpose(0, 1)
