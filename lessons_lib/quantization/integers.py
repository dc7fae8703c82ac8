"""Evenly spaced levels (lesson 10): integers of 2 to 8 bits with a scale per tensor, row or group.

absmax       x ~ q·s, |q| < 2^(bits-1), s = max|x| / (2^(bits-1) - 1): zero stays zero, one number a block
zero_point   x ~ (q - z)·s, s = (max - min) / (2^bits - 1), an integer z: all levels used, and zero stays zero
minimum      x ~ q·s + min, the same with the minimum itself: for values that are all far from zero

Rounding is to the nearest, halves to the even level. Values within a block end up within half a step of where they
were, since scales are rounded *up* to the bits they are kept in, and values are quantized with the rounded scale.
Dettmers et al. 2022 (arXiv 2208.07339) for absmax and zero point; blocks: Dettmers & Zettlemoyer 2022 (2212.09720).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.quantization.checks import ROW, blocks, check_bits, check_values
from lessons_lib.quantization.packing import pack, unpack
from lessons_lib.quantization.quantized import Quantized

NOISE = 1e-6  # relative: what float32 arithmetic may have added to a scale
KINDS = ("absmax", "zero_point", "minimum")


@dataclass(frozen=True)
class Grid:
    """The levels of every block: value = (code - zero)·scale + low, for codes 0 .. 2^bits - 1.

    scales, zeros (uint8) and lows are (blocks, 1). Without zeros and lows the levels are those of absmax: zero is
    2^(bits-1), and code 0 is never used.
    """

    bits: int
    scales: Tensor
    zeros: Tensor | None = None
    lows: Tensor | None = None

    def encode(self, x: Tensor) -> Tensor:
        """(blocks, size) -> codes (blocks, size) uint8; what lies outside gets the nearest level."""
        x = x if self.lows is None else x - self.lows.to(x)
        codes = (x / self.scales.to(x)).round_().add_(self._zero(x))  # in place: a head's matrix has millions
        return codes.clamp_(self._least(), 2**self.bits - 1).to(torch.uint8)

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """codes (blocks, size) -> values (blocks, size)."""
        x = codes.to(dtype)
        x = (x - self._zero(x)) * self.scales.to(dtype)
        return x if self.lows is None else x + self.lows.to(dtype)

    def _symmetric(self) -> bool:
        return self.zeros is None and self.lows is None

    def _least(self) -> int:
        return 1 if self._symmetric() else 0

    def _zero(self, like: Tensor) -> Tensor | int:
        if self.zeros is not None:
            return self.zeros.to(like)
        return 2 ** (self.bits - 1) if self._symmetric() else 0


@dataclass(frozen=True)
class Integers(Quantized):
    """Codes packed without gaps (`packing`), block after block in bytes (n,), and the grid of the blocks."""

    codes: Tensor
    grid: Grid

    def levels(self) -> Tensor:
        """The codes one by one, uint8, in the tensor's shape."""
        return unpack(self.codes, self.grid.bits, self.shape.numel()).view(self.shape)

    def dequantize(self) -> Tensor:
        codes = self.levels().view(len(self.grid.scales), -1)
        return self.grid.decode(codes, working_dtype(self.dtype)).view(self.shape).to(self.dtype)


def quantize(
    x: Tensor, bits: int = 8, per: str | int = ROW, kind: str = "absmax", scale_dtype: torch.dtype = torch.float16
) -> Integers:
    """x (..., K) -> integers of 2 to 8 bits. per: "tensor", "row" or a group size. scale_dtype: of scales and minima.

    Raises ValueError for values that are not finite, bits, kinds or groups that do not exist, and scales too large
    for scale_dtype.
    """
    check_values(x)
    values = blocks(x.detach().to(working_dtype(x.dtype)), per)
    grid = fit_grid(values, bits, kind, scale_dtype)
    return Integers(x.shape, x.dtype, pack(grid.encode(values), bits), grid)


def fit_grid(values: Tensor, bits: int, kind: str = "absmax", scale_dtype: torch.dtype = torch.float16) -> Grid:
    """The finest grid of this kind that spans each block (blocks, size).

    ValueError for an unknown kind or bits, and for scales too large for scale_dtype.
    """
    check_bits(bits)
    if kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r}; choose one of {', '.join(KINDS)}")
    top = 2**bits - 1
    if kind == "absmax":
        return Grid(bits, rounded_up(values.abs().amax(1, True) / (top // 2), scale_dtype))
    low, high = values.amin(1, True), values.amax(1, True)
    if kind == "minimum":
        lows = -rounded_up(-low, scale_dtype, zero=0.0, noise=0.0)
        return Grid(bits, rounded_up((high - lows.to(low)) / top, scale_dtype), lows=lows)
    low, high = low.clamp_max(0), high.clamp_min(0)  # zero is a level, so the grid spans it
    scales = rounded_up((high - low) / top, scale_dtype)
    return Grid(bits, scales, zeros=(-low / scales.to(low)).round().to(torch.uint8))


def rounded_up(x: Tensor, dtype: torch.dtype, zero: float = 1.0, noise: float = NOISE) -> Tensor:
    """x in `dtype`, not below x but for relative noise; exact zeros become `zero` (a scale of 1 divides without harm).

    A scale below x would push the largest values of its block beyond the last level. Raises ValueError for what
    is too large for the dtype.
    """
    near = x.to(dtype)
    short = near.to(x) < x - noise * x.abs()
    near = torch.where(short, torch.nextafter(near, torch.full_like(near, torch.inf)), near)
    if not near.isfinite().all():
        most = float(x.abs().max())
        raise ValueError(
            f"a scale or minimum of {most:.3g} is too large for {dtype}; quantize takes scale_dtype=torch.float32"
        )
    return near.masked_fill(near == 0, zero)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Rounding is decided in single precision or better."""
    return torch.promote_types(dtype, torch.float32)
