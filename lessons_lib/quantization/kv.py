"""Quantized KV cache (lesson 10): keys per channel, values per token, the newest tokens in full precision.

KIVI (Liu et al. 2024, arXiv 2402.02750): outliers of keys stay in the same channels, so a group is one channel of G
tokens. Values have no outlier channels, so a group is G channels of one token, and its error affects this token only.
Levels run from a group's minimum to its maximum: bits + 32/G bits per element.

KIVI rounds its residual of keys when it is full. Here the residual always keeps at least the newest R tokens, so that
rejected draft tokens can be dropped. Codes never change once written. Every read dequantizes the whole history: memory
between steps falls, the peak memory and the time of a step do not.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache, is_contiguous
from lessons_lib.quantization.integers import Grid, Integers, check_bits, quantize

GROUP, RESIDUAL = 32, 128  # KIVI's G and R


def quantize_keys(keys: Tensor, bits: int = 2, group: int = GROUP) -> Integers:
    """Quantize keys (H_kv, S, d) per channel -> integers (S/G, H_kv, d, G), a scale and a minimum per group.

    A group is one channel of G tokens; S must be a multiple of G.
    """
    return quantize(_by_group(keys, group).transpose(2, 3), bits, group, "affine")


def quantize_values(values: Tensor, bits: int = 2, group: int = GROUP, tokens: int = GROUP) -> Integers:
    """Quantize values (H_kv, S, d) per token -> integers (S/tokens, H_kv, tokens, d), d/G scales for each token.

    A group is G channels of one token; d must be a multiple of G, S of `tokens`.
    """
    return quantize(_by_group(values, tokens), bits, group, "affine")


def restore_keys(keys: Integers) -> Tensor:
    """Dequantize the result of `quantize_keys` -> keys (H_kv, S, d)."""
    return keys.dequantize().permute(1, 0, 3, 2).flatten(1, 2)


def restore_values(values: Integers) -> Tensor:
    """Dequantize the result of `quantize_values` -> values (H_kv, S, d)."""
    return values.dequantize().transpose(0, 1).flatten(1, 2)


def joined(old: Integers | None, new: Integers) -> Integers:
    """Concatenate old (n, ...) and new (m, ...) results of `quantize_keys` or `quantize_values` -> (n + m, ...).

    No code changes.
    """
    if old is None:
        return new
    shape = torch.Size((old.shape[0] + new.shape[0], *new.shape[1:]))
    scales, lows = (torch.cat([getattr(x.grid, name) for x in (old, new)]) for name in ("scales", "lows"))
    return Integers(shape, new.dtype, torch.cat([old.codes, new.codes]), Grid(new.grid.bits, scales, lows=lows))


class QuantizedCache(Cache):
    """The KV cache of one sequence for our decoder, with all but the newest tokens quantized.

    group: tokens of a group of keys, and channels of a group of values. residual: newest tokens that always stay in
    full precision. A forward pass reads its own tokens in full precision, however many; they are rounded afterwards.
    """

    def __init__(self, layers: int, bits: int = 2, group: int = GROUP, residual: int = RESIDUAL):
        """bits: 2 to 8. group: a multiple of 8. residual: at least 0."""
        check_bits(bits)
        if group < 8 or group % 8 or residual < 0:
            raise ValueError(f"a group is a multiple of 8 and a residual at least 0, not {group} and {residual}")
        self.bits, self.group, self.residual = bits, group, residual
        self.rounded: list[tuple[Integers, Integers] | None] = [None] * layers
        self.newest: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def length(self, layer: int = -1) -> int:
        return self.rounded_length(layer) + (0 if self.newest[layer] is None else self.newest[layer][0].shape[1])

    def rounded_length(self, layer: int = -1) -> int:
        """Number of quantized tokens in a layer."""
        return 0 if self.rounded[layer] is None else self.rounded[layer][0].shape[0] * self.group

    @property
    def nbytes(self) -> int:
        """Bytes of all codes, scales, minima and unrounded tokens."""
        return sum(part.nbytes for pair in (*self.rounded, *self.newest) if pair is not None for part in pair)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (H_kv, T, d) of T new tokens -> all entries of that layer (H_kv, S + T, d)."""
        # 1. this layer's unrounded tokens, then the new ones
        if self.newest[layer] is not None:
            keys, values = (torch.cat(pair, 1) for pair in zip(self.newest[layer], (keys, values), strict=True))
        # 2. what attention reads: the rounded tokens, dequantized, before them
        old = self.rounded[layer]
        seen = (keys, values)
        if old is not None:
            seen = torch.cat([restore_keys(old[0]), keys], 1), torch.cat([restore_values(old[1]), values], 1)
        # 3. round for later passes; this pass reads its own tokens unrounded
        self._round(layer, keys, values)
        return seen

    def _round(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Round the oldest tokens in whole groups, leaving at least `residual` tokens unrounded."""
        count = max(0, keys.shape[1] - self.residual) // self.group * self.group
        if count:
            old_keys, old_values = self.rounded[layer] or (None, None)
            new = quantize_keys(keys[:, :count], self.bits, self.group)
            more = quantize_values(values[:, :count], self.bits, self.group, self.group)
            self.rounded[layer] = joined(old_keys, new), joined(old_values, more)
        # clone: a view would keep the whole block of keys and values in memory
        self.newest[layer] = keys[:, count:].clone(), values[:, count:].clone()

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        """Keep the first `prefix` entries and then those at the positions in `then`.

        Quantized tokens cannot be dropped.
        """
        if is_contiguous(prefix, then):  # these may be rounded already
            prefix, then = prefix + len(then), ()
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
