"""Integers of 2 to 8 bits (lesson 10): blocks that share a scale, the grid of each block, and how codes are packed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# one scale for the whole tensor, or one per row: an output channel of weights, a token of activations
TENSOR, ROW = "tensor", "row"


def check_values(x: Tensor, what: str = "the tensor") -> None:
    """Check that x has finite floating-point values."""
    if not x.is_floating_point() or x.is_complex():
        raise ValueError(f"{what} holds {x.dtype}; only floating-point values can be quantized: cast it with .float()")
    if x.numel() == 0 or x.ndim == 0:
        raise ValueError(f"{what} has shape {tuple(x.shape)}; at least one row with one value is needed")
    if not x.isfinite().all():
        raise ValueError(f"{what} holds {int((~x.isfinite()).sum())} NaN or infinite values; mend or mask them first")


def check_bits(bits: int) -> None:
    """Check that bits is a whole number from 2 to 8."""
    if not (isinstance(bits, int) and 2 <= bits <= 8):
        raise ValueError(f"{bits!r} bits are not supported; choose a whole number from 2 to 8")


def blocks(x: Tensor, per: str | int) -> Tensor:
    """Split x (..., K) into blocks (blocks, size) with one scale each: per "tensor", "row" or group size.

    A group must divide K, so that no scale spans two rows.
    """
    if per == TENSOR:
        return x.reshape(1, -1)
    size = x.shape[-1] if per == ROW else per
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f'per is "tensor", "row" or a group size of at least 1, not {per!r}')
    if x.shape[-1] % size:
        fits = [g for g in (256, 128, 64, 32, 16, 8) if x.shape[-1] % g == 0]
        advice = f"{', '.join(map(str, fits))} would" if fits else 'use per="row"'
        raise ValueError(f"groups of {size} do not divide rows of {x.shape[-1]} values; {advice}")
    return x.reshape(-1, size)


EIGHT = 8  # bits of a byte, and the number of codes that always fill whole bytes together


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes 0 .. 2^bits - 1 of any shape into bytes (ceil(count·bits / 8),); unused bits of the last one are 0."""
    codes = codes.reshape(-1).to(torch.uint8)
    if bits == EIGHT:
        return codes
    eights = F.pad(codes, (0, -len(codes) % EIGHT)).view(-1, EIGHT)
    packed = torch.zeros(len(eights), bits + 1, dtype=torch.uint8, device=codes.device)
    for i, (byte, shift) in enumerate(_begins(bits)):
        packed[:, byte] |= eights[:, i] << shift
        packed[:, byte + 1] |= eights[:, i] >> (EIGHT - shift) if shift else 0
    return packed[:, :bits].flatten()[: -(-len(codes) * bits // EIGHT)]


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack`: bytes -> the first `count` codes, uint8 (count,)."""
    if bits == EIGHT:
        return packed[:count]
    groups = F.pad(packed, (0, -len(packed) % bits)).view(-1, bits)
    groups = F.pad(groups, (0, 1))  # a further byte, so that byte + 1 exists for the last code
    codes = [groups[:, byte] >> shift | (groups[:, byte + 1] << (EIGHT - shift) if shift else 0)
             for byte, shift in _begins(bits)]  # fmt: skip
    return (torch.stack(codes, 1) & 2**bits - 1).flatten()[:count]


def _begins(bits: int) -> list[tuple[int, int]]:
    """(byte, bit within it) where each of eight codes begins. For 3 bits: (0, 0), (0, 3), (0, 6), (1, 1), ..."""
    return [divmod(i * bits, EIGHT) for i in range(EIGHT)]


@dataclass(frozen=True)
class Quantized(ABC):
    """A quantized tensor: the codes and parameters of a format, with the shape and dtype of the original."""

    shape: torch.Size
    dtype: torch.dtype

    @abstractmethod
    def dequantize(self) -> Tensor:
        """The values that the codes represent, in the shape and dtype of the original."""

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors: codes, scales, zero points."""
        return stored_bytes(self)

    @property
    def bits_per_weight(self) -> float:
        """8·nbytes / number of values."""
        return 8 * self.nbytes / self.shape.numel()


def stored_bytes(part: Any) -> int:
    """Bytes of a tensor, or of all tensors in the fields of a dataclass; 0 for anything else."""
    if isinstance(part, Tensor):
        return part.nbytes
    return sum(stored_bytes(getattr(part, f.name)) for f in fields(part)) if is_dataclass(part) else 0


NOISE = 1e-6  # relative error of a scale that float32 arithmetic may cause
KINDS = ("absmax", "zero_point", "affine")


@dataclass(frozen=True)
class Grid:
    """The quantization parameters of every block: value = (code - zero)·scale + low, for codes 0 .. 2^bits - 1.

    scales, zeros (uint8) and lows are (blocks, 1). Without zeros and lows the grid is symmetric (absmax): zero is
    2^(bits-1), and code 0 is never used.
    """

    bits: int
    scales: Tensor
    zeros: Tensor | None = None
    lows: Tensor | None = None

    def encode(self, x: Tensor) -> Tensor:
        """Quantize x (blocks, size) -> codes (blocks, size) uint8; values outside the grid are clamped to it."""
        x = x if self.lows is None else x - self.lows.to(x)
        codes = (x / self.scales.to(x)).round_().add_(self._zero(x))  # in place: the LM head has millions of weights
        return codes.clamp_(1 if self.symmetric else 0, 2**self.bits - 1).to(torch.uint8)

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dequantize codes (blocks, size) -> values (blocks, size)."""
        x = codes.to(dtype)
        x = (x - self._zero(x)) * self.scales.to(dtype)
        return x if self.lows is None else x + self.lows.to(dtype)

    @property
    def symmetric(self) -> bool:
        """Whether the grid is that of absmax."""
        return self.zeros is None and self.lows is None

    def _zero(self, like: Tensor) -> Tensor | int:
        if self.zeros is not None:
            return self.zeros.to(like)
        return 2 ** (self.bits - 1) if self.symmetric else 0


@dataclass(frozen=True)
class Integers(Quantized):
    """Affine integers: codes packed without gaps (`pack`) in bytes (n,), and the grid of the blocks."""

    codes: Tensor
    grid: Grid

    def levels(self) -> Tensor:
        """The unpacked codes, uint8, in the tensor's shape."""
        return unpack(self.codes, self.grid.bits, self.shape.numel()).view(self.shape)

    def dequantize(self) -> Tensor:
        codes = self.levels().view(len(self.grid.scales), -1)
        values = self.grid.decode(codes, working_dtype(self.dtype))
        if self.dtype == torch.float16:  # a scale that was rounded up can take the last level beyond its range
            values.clamp_(-torch.finfo(self.dtype).max, torch.finfo(self.dtype).max)
        return values.view(self.shape).to(self.dtype)


def quantize(
    x: Tensor, bits: int = 8, per: str | int = ROW, kind: str = "absmax", scale_dtype: torch.dtype = torch.float16
) -> Integers:
    """Round x (..., K) to integers of 2 to 8 bits.

    per: "tensor", "row" or a group size. kind: "absmax", "zero_point" or "affine". scale_dtype: of scales and minima.
    A group must divide K.
    """
    check_values(x)
    values = blocks(x.detach().to(working_dtype(x.dtype)), per)
    grid = fit_grid(values, bits, kind, scale_dtype)
    return Integers(x.shape, x.dtype, pack(grid.encode(values), bits), grid)


def fit_grid(values: Tensor, bits: int, kind: str = "absmax", scale_dtype: torch.dtype = torch.float16) -> Grid:
    """The finest grid of this kind that covers every value of each block (blocks, size)."""
    check_bits(bits)
    if kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r}; choose one of {', '.join(KINDS)}")
    top = 2**bits - 1
    if kind == "absmax":
        return Grid(bits, rounded_up(values.abs().amax(1, True) / (top // 2), scale_dtype))
    low, high = values.amin(1, True), values.amax(1, True)
    if kind == "affine":
        lows = -rounded_up(-low, scale_dtype, zero=0.0, noise=0.0)
        return Grid(bits, rounded_up((high - lows.to(low)) / top, scale_dtype), lows=lows)
    low, high = low.clamp_max(0), high.clamp_min(0)  # zero point: zero is a level, so the grid must include it
    scales = rounded_up((high - low) / top, scale_dtype)
    return Grid(bits, scales, zeros=(-low / scales.to(low)).round().to(torch.uint8))


def rounded_up(x: Tensor, dtype: torch.dtype, zero: float = 1.0, noise: float = NOISE) -> Tensor:
    """Cast x to dtype, rounding up (within relative noise); exact zeros become `zero` (a scale of 1 is harmless).

    A scale rounded down would push the largest values of its block beyond the last level.
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
    """The dtype in which rounding is computed: float32 or better."""
    return torch.promote_types(dtype, torch.float32)
