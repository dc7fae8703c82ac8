"""Number formats (lesson 10): affine integers, NF4, FP8, how their bits are packed, and their errors."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TENSOR, ROW = (
    "tensor",
    "row",
)  # one scale for the whole tensor, or per row: an output channel of weights, a token of activations


def check_values(x: Tensor, what: str = "the tensor") -> None:
    """Raises ValueError unless x has finite floating-point values."""
    if not x.is_floating_point() or x.is_complex():
        raise ValueError(f"{what} holds {x.dtype}; only floating-point values can be quantized: cast it with .float()")
    if x.numel() == 0 or x.ndim == 0:
        raise ValueError(f"{what} has shape {tuple(x.shape)}; at least one row with one value is needed")
    if not x.isfinite().all():
        raise ValueError(f"{what} holds {int((~x.isfinite()).sum())} NaN or infinite values; mend or mask them first")


def check_bits(bits: int) -> None:
    """Raises ValueError unless bits is a whole number from 2 to 8."""
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
        return codes.clamp_(self._least(), 2**self.bits - 1).to(torch.uint8)

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dequantize codes (blocks, size) -> values (blocks, size)."""
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
    """Affine integers: codes packed without gaps (`pack`) in bytes (n,), and the grid of the blocks."""

    codes: Tensor
    grid: Grid

    def levels(self) -> Tensor:
        """The unpacked codes, uint8, in the tensor's shape."""
        return unpack(self.codes, self.grid.bits, self.shape.numel()).view(self.shape)

    def dequantize(self) -> Tensor:
        codes = self.levels().view(len(self.grid.scales), -1)
        return self.grid.decode(codes, working_dtype(self.dtype)).view(self.shape).to(self.dtype)


def quantize(
    x: Tensor, bits: int = 8, per: str | int = ROW, kind: str = "absmax", scale_dtype: torch.dtype = torch.float16
) -> Integers:
    """Round x (..., K) to integers of 2 to 8 bits.

    per: "tensor", "row" or a group size. kind: "absmax", "zero_point" or "affine". scale_dtype: of scales and minima.
    Raises ValueError for values that are not finite, unknown options, a group that does not divide K, and scales too
    large for scale_dtype.
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

    A scale rounded down would push the largest values of its block beyond the last level. Raises ValueError for values
    too large for dtype.
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


BLOCK, SCALES_BLOCK = 64, 256


@cache
def codebook() -> Tensor:
    """The 16 levels of NF4 in [-1, 1], ascending, float64: quantiles of N(0, 1), divided by the largest of them.

    Probabilities are evenly spaced from one half outwards, 8 steps up and 7 down. At probability 1 the quantile would
    be infinite, so the last one is 1 - (1/30 + 1/32)/2: half a step short, on average of both sides.
    """
    last = 1 - (1 / 30 + 1 / 32) / 2
    above = torch.special.ndtri(torch.linspace(0.5, last, 9, dtype=torch.float64))[1:]
    below = -torch.special.ndtri(torch.linspace(0.5, last, 8, dtype=torch.float64))[1:]
    return torch.cat([below.flip(0), torch.zeros(1, dtype=torch.float64), above]) / above[-1]


@dataclass(frozen=True)
class DoubleScales:
    """Double-quantized scales: `count` scales as mean () + 8-bit integers (blocks, 256), padded in the last block."""

    mean: Tensor
    rest: Integers
    count: int

    def dequantize(self) -> Tensor:
        """The scales (count,) float32."""
        return self.mean + self.rest.dequantize().flatten()[: self.count]


@dataclass(frozen=True)
class NormalFloats(Quantized):
    """NF4: value = codebook[code]·scale. codes: two in a byte (n,). scales: one per block (blocks,)."""

    codes: Tensor
    scales: Tensor | DoubleScales

    def dequantize(self) -> Tensor:
        scales = self.scales.dequantize() if isinstance(self.scales, DoubleScales) else self.scales
        numbers = unpack(self.codes, 4, self.shape.numel()).view(len(scales), -1)
        kind = working_dtype(self.dtype)
        levels = codebook().to(numbers.device, kind)[numbers.long()]
        return (levels * scales[:, None].to(kind)).view(self.shape).to(self.dtype)


def quantize_nf4(x: Tensor, block: int = BLOCK, double: bool = True) -> NormalFloats:
    """Round x (..., K) to NF4 in blocks along the last axis (Dettmers et al. 2023, arXiv 2305.14314).

    double: quantize the scales as well. Raises ValueError for values that are not finite and for a block that does not
    divide K.
    """
    check_values(x)
    values = blocks(x.detach().to(working_dtype(x.dtype)), block)
    # scales: the largest magnitude of each block, themselves quantized if double
    exact = rounded_up(values.abs().amax(1), torch.float32, zero=0.0)
    scales = double_scales(exact) if double else exact
    # codes: the nearest level after division by the scale that dequantizing will use
    used = (scales.dequantize() if double else scales).to(values)
    ratios = values / torch.where(used == 0, 1, used)[:, None]
    return NormalFloats(x.shape, x.dtype, pack(nearest_level(ratios), 4), scales)


def nearest_level(ratios: Tensor) -> Tensor:
    """Index of the nearest NF4 level, for ratios of any shape; ties go to the lower level."""
    levels = codebook().to(ratios)
    return torch.bucketize(ratios.contiguous(), (levels[1:] + levels[:-1]) / 2)


def double_scales(scales: Tensor) -> DoubleScales:
    """Double quantization: scales (count,) float32, all at least 0 -> their mean, and 8-bit differences from it."""
    mean = scales.mean()
    rest = F.pad(scales - mean, (0, -len(scales) % SCALES_BLOCK)).view(-1, SCALES_BLOCK)
    return DoubleScales(mean, quantize(rest, 8, scale_dtype=torch.float32), len(scales))


@dataclass(frozen=True)
class Format:
    """A float format: mantissa bits, exponent of the smallest normal number, largest number, torch dtype."""

    mantissa: int
    least: int
    largest: float
    kind: torch.dtype


FORMATS = {
    "e4m3": Format(3, -6, 448.0, torch.float8_e4m3fn),
    "e5m2": Format(2, -14, 57344.0, torch.float8_e5m2),
}


@dataclass(frozen=True)
class SmallFloats(Quantized):
    """FP8: value = float·scale. codes: (..., K) in torch's 8-bit dtype. scales: one per block (blocks, 1)."""

    codes: Tensor
    scales: Tensor

    def dequantize(self) -> Tensor:
        kind = working_dtype(self.dtype)
        values = self.codes.to(kind).view(len(self.scales), -1) * self.scales.to(kind)
        return values.view(self.shape).to(self.dtype)


def quantize_fp8(x: Tensor, format: str = "e4m3", per: str | int = ROW) -> SmallFloats:
    """Round x (..., K) to FP8 with a float32 scale max|x| / largest, per "tensor", "row" or group.

    Values are scaled and clamped before the cast: above the largest number torch's own cast returns infinity in e5m2,
    and in e4m3 NaN before torch 2.12. Raises ValueError for values that are not finite, unknown formats, and groups
    that do not divide K.
    """
    check_values(x)
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    # scale every block so that its largest value becomes the format's largest number
    values = blocks(x.detach().to(working_dtype(x.dtype)), per)
    scales = rounded_up(values.abs().amax(1, True) / FORMATS[format].largest, torch.float32)
    scales = scales.clamp_min(torch.finfo(torch.float32).tiny)  # smaller scales are subnormal and lose precision
    codes = round_float(values / scales.to(values), format).to(FORMATS[format].kind)
    return SmallFloats(x.shape, x.dtype, codes.view(x.shape), scales)


def round_float(x: Tensor, format: str) -> Tensor:
    """Round x to the format's nearest numbers, ties to even, clamped to the largest; any shape, in x's own dtype.

    Between 2^e and 2^(e+1) the spacing is 2^(e - mantissa). Below the smallest normal number it stays the same as just
    above it.
    """
    f = FORMATS[format]
    exponent = torch.frexp(x).exponent - 1  # x = m·2^exponent with 1 <= |m| < 2
    step = torch.ldexp(torch.ones_like(x), exponent.clamp_min(f.least) - f.mantissa)
    return ((x / step).round() * step).clamp(-f.largest, f.largest)


FLOATS = FORMATS


Rounding = Callable[[Tensor], Quantized]


def rounding(name: str) -> Rounding:
    """The function that rounds a weight to the format of this name. Raises ValueError for an unknown name."""
    family, _, rest = name.partition(" ")
    words = rest.split()
    per = _only([_group(word) for word in words if _group(word)], name)
    others = [word for word in words if not _group(word)]
    if re.fullmatch(r"int\d+", family) and set(others) <= set(KINDS):
        return _integers(int(family[3:]), per or ROW, _only(others, name))
    if family == "nf4" and set(others) <= {"double"} and not isinstance(per, str):
        return partial(quantize_nf4, block=per or BLOCK, double=bool(_only(others, name)))
    if family == "fp8" and set(others) <= set(FLOATS):
        return partial(quantize_fp8, format=_only(others, name) or "e4m3", per=per or ROW)
    raise ValueError(f"{name!r} is no format; write it like 'int8', 'int4 g32', 'int3 g64 absmax', 'nf4 double', 'fp8'")


def integers(name: str) -> dict[str, int | str] | None:
    """bits, per and kind of an integer format, as arguments of `quantize` and `gptq`; None for other formats."""
    found = rounding(name)
    return dict(found.keywords) if found.func is quantize else None


def _integers(bits: int, per: str | int, kind: str | None) -> Rounding:
    check_bits(bits)
    return partial(quantize, bits=bits, per=per, kind=kind or ("absmax" if bits == 8 else "affine"))


def _group(word: str) -> str | int | None:
    if word in (ROW, TENSOR):
        return word
    return int(word[1:]) if re.fullmatch(r"g\d+", word) else None


def _only(found: list, name: str):
    if len(found) > 1:
        raise ValueError(f"{name!r} names {' and '.join(map(str, found))}; choose one of them")
    return found[0] if found else None


ROWS = 256  # rows of the matrix that `bits_of` quantizes: enough to fill whole blocks of double-quantized scales


def round_trip(x: Tensor, name: str) -> Tensor:
    """x (..., K) rounded to the format of this name and dequantized."""
    return rounding(name)(x).dequantize()


def bits_of(name: str, columns: int) -> float:
    """Bits per weight of a format for rows of `columns` weights, scales and minima included."""
    return rounding(name)(torch.zeros(ROWS, columns)).bits_per_weight


def relative_error(x: Tensor, rounded: Tensor) -> float:
    """Norm of the error / norm of x, for two tensors of one shape: 0.01 is an error of 1%."""
    return float((rounded - x).norm() / x.norm())


def decibels(x: Tensor, rounded: Tensor) -> float:
    """Signal-to-noise ratio, 10 log10(Σ x² / Σ error²): 6 dB more halve the error. Infinite without error."""
    noise = (rounded - x).double().square().sum()
    return float(10 * torch.log10(x.double().square().sum() / noise))


def draws(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Samples (count,) of distributions with increasingly heavy tails, by name."""
    random = torch.Generator().manual_seed(seed)
    normal = torch.randn(count, generator=random)
    loud = torch.rand(count, generator=random) < 1e-3
    sign = torch.rand(count, generator=random).sub(0.5).sign()
    chi = torch.randn(3, count, generator=random).square().sum(0) / 3
    makers: dict[str, Callable[[], Tensor]] = {
        "uniform": lambda: 2 * torch.rand(count, generator=random) - 1,
        "normal": lambda: normal,
        "Laplace": lambda: sign * -torch.rand(count, generator=random).clamp_min(1e-12).log(),
        "normal, 0.1% of it x20": lambda: torch.where(loud, 20 * normal, normal),
        "Student's t, 3 degrees": lambda: normal / chi.sqrt(),
    }
    return {name: make() for name, make in makers.items()}
