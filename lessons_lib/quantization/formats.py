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
)  # one scale for all, or for each row: an output channel of weights, a token of activations


def check_values(x: Tensor, what: str = "the tensor") -> None:
    """Raises ValueError unless x has finite floating-point values."""
    if not x.is_floating_point() or x.is_complex():
        raise ValueError(f"{what} holds {x.dtype}; only floating-point values can be quantized: cast it with .float()")
    if x.numel() == 0 or x.ndim == 0:
        raise ValueError(f"{what} has shape {tuple(x.shape)}; at least one row with one value is needed")
    if not x.isfinite().all():
        raise ValueError(f"{what} holds {int((~x.isfinite()).sum())} NaN or infinite values; mend or mask them first")


def check_bits(bits: int) -> None:
    """Raises ValueError for a width that has no format here."""
    if not (isinstance(bits, int) and 2 <= bits <= 8):
        raise ValueError(f"{bits!r} bits are not supported; choose a whole number from 2 to 8")


def blocks(x: Tensor, per: str | int) -> Tensor:
    """x (..., K) -> (blocks, size), one scale each: per "tensor", per "row", or for so many values of the last axis.

    Raises ValueError for another per, and a group that does not divide K, as a scale must not reach over two rows.
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


EIGHT = 8  # codes that together end where a byte ends, and bits of that


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes 0 .. 2^bits - 1 of any shape -> bytes (ceil(count·bits / 8),), what is left of the last one zero."""
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
    """The inverse: bytes -> the first `count` codes, uint8 (count,)."""
    if bits == EIGHT:
        return packed[:count]
    groups = F.pad(packed, (0, -len(packed) % bits)).view(-1, bits)
    groups = F.pad(groups, (0, 1))  # the last code ends in no further byte
    codes = [groups[:, byte] >> shift | (groups[:, byte + 1] << (EIGHT - shift) if shift else 0)
             for byte, shift in _begins(bits)]  # fmt: skip
    return (torch.stack(codes, 1) & 2**bits - 1).flatten()[:count]


def _begins(bits: int) -> list[tuple[int, int]]:
    """(byte, bit within it) where each of eight codes begins: (0, 0), (0, 3), (0, 6), (1, 1), ... of 3 bits."""
    return [divmod(i * bits, EIGHT) for i in range(EIGHT)]


@dataclass(frozen=True)
class Quantized(ABC):
    """A tensor of this shape and dtype, kept as codes and what turns them back into values."""

    shape: torch.Size
    dtype: torch.dtype

    @abstractmethod
    def dequantize(self) -> Tensor:
        """The values that the codes stand for, in the shape and dtype of the original."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept: codes, scales, zero points."""
        return stored_bytes(self)

    @property
    def bits_per_weight(self) -> float:
        """8·nbytes over the number of values."""
        return 8 * self.nbytes / self.shape.numel()


def stored_bytes(part: Any) -> int:
    """Bytes of a tensor, or of all tensors in the fields of a dataclass; 0 for anything else."""
    if isinstance(part, Tensor):
        return part.nbytes
    return sum(stored_bytes(getattr(part, f.name)) for f in fields(part)) if is_dataclass(part) else 0


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


BLOCK, SCALES_BLOCK = 64, 256


@cache
def codebook() -> Tensor:
    """The 16 levels in [-1, 1], ascending, float64: quantiles of N(0, 1) over the largest of them.

    Probabilities are evenly spaced from one half outwards, 8 steps up and 7 down. The last one, whose quantile would
    be infinite at 1, stops at 1 - (1/30 + 1/32)/2: half a level short, on average of both sides.
    """
    last = 1 - (1 / 30 + 1 / 32) / 2
    above = torch.special.ndtri(torch.linspace(0.5, last, 9, dtype=torch.float64))[1:]
    below = -torch.special.ndtri(torch.linspace(0.5, last, 8, dtype=torch.float64))[1:]
    return torch.cat([below.flip(0), torch.zeros(1, dtype=torch.float64), above]) / above[-1]


@dataclass(frozen=True)
class DoubleScales:
    """`count` scales as mean () + integers (blocks, 256) of 8 bits; the last block is filled up with the mean."""

    mean: Tensor
    rest: Integers
    count: int

    def dequantize(self) -> Tensor:
        """(count,) float32."""
        return self.mean + self.rest.dequantize().flatten()[: self.count]


@dataclass(frozen=True)
class NormalFloats(Quantized):
    """Numbers of levels, two in a byte (n,), and a scale for every block (blocks,): value = codebook[number]·scale."""

    codes: Tensor
    scales: Tensor | DoubleScales

    def dequantize(self) -> Tensor:
        scales = self.scales.dequantize() if isinstance(self.scales, DoubleScales) else self.scales
        numbers = unpack(self.codes, 4, self.shape.numel()).view(len(scales), -1)
        kind = working_dtype(self.dtype)
        levels = codebook().to(numbers.device, kind)[numbers.long()]
        return (levels * scales[:, None].to(kind)).view(self.shape).to(self.dtype)


def quantize_nf4(x: Tensor, block: int = BLOCK, double: bool = True) -> NormalFloats:
    """x (..., K) -> NF4 in blocks along the last axis. double: quantize the scales, too.

    Raises ValueError for values that are not finite and for a block that does not divide K.
    """
    check_values(x)
    values = blocks(x.detach().to(working_dtype(x.dtype)), block)
    exact = rounded_up(values.abs().amax(1), torch.float32, zero=0.0)
    scales = double_scales(exact) if double else exact
    used = (scales.dequantize() if double else scales).to(values)
    ratios = values / torch.where(used == 0, 1, used)[:, None]
    return NormalFloats(x.shape, x.dtype, pack(nearest_level(ratios), 4), scales)


def nearest_level(ratios: Tensor) -> Tensor:
    """Any shape -> the number of the nearest level; of two at the same distance the lower one."""
    levels = codebook().to(ratios)
    return torch.bucketize(ratios.contiguous(), (levels[1:] + levels[:-1]) / 2)


def double_scales(scales: Tensor) -> DoubleScales:
    """(count,) float32, all at least 0 -> their mean, and what is left of them in 8 bits.

    ValueError for none, and for any that is not finite.
    """
    mean = scales.mean()
    rest = F.pad(scales - mean, (0, -len(scales) % SCALES_BLOCK)).view(-1, SCALES_BLOCK)
    return DoubleScales(mean, quantize(rest, 8, scale_dtype=torch.float32), len(scales))


@dataclass(frozen=True)
class Format:
    """A float format: bits of mantissa, exponent of the smallest normal number, the largest number, torch's type."""

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
    """Floats of 8 bits in torch's own type (..., K), and a scale for each block (blocks, 1): value = float·scale."""

    codes: Tensor
    scales: Tensor

    def dequantize(self) -> Tensor:
        kind = working_dtype(self.dtype)
        values = self.codes.to(kind).view(len(self.scales), -1) * self.scales.to(kind)
        return values.view(self.shape).to(self.dtype)


def quantize_fp8(x: Tensor, format: str = "e4m3", per: str | int = ROW) -> SmallFloats:
    """x (..., K) -> floats of 8 bits with a float32 scale max|x| / largest, per "tensor", "row" or group.

    Scaled and clamped before the cast: above the largest number torch's own cast gives infinity in e5m2, and in e4m3
    NaN before torch 2.12. ValueError for values that are not finite, unknown formats, and groups that do not divide K.
    """
    check_values(x)
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    values = blocks(x.detach().to(working_dtype(x.dtype)), per)
    scales = rounded_up(values.abs().amax(1, True) / FORMATS[format].largest, torch.float32)
    scales = scales.clamp_min(torch.finfo(torch.float32).tiny)  # below it, a scale has no precision left
    codes = round_float(values / scales.to(values), format).to(FORMATS[format].kind)
    return SmallFloats(x.shape, x.dtype, codes.view(x.shape), scales)


def round_float(x: Tensor, format: str) -> Tensor:
    """Any shape -> the format's nearest numbers in x's own dtype, halves to the even mantissa, clamped to the largest.

    Between 2^e and 2^(e+1) numbers are 2^(e - mantissa) apart; below the smallest normal one as far as just above it.
    """
    f = FORMATS[format]
    exponent = torch.frexp(x).exponent - 1  # x = m·2^exponent with 1 <= |m| < 2
    step = torch.ldexp(torch.ones_like(x), exponent.clamp_min(f.least) - f.mantissa)
    return ((x / step).round() * step).clamp(-f.largest, f.largest)


FLOATS = FORMATS


Rounding = Callable[[Tensor], Quantized]


def rounding(name: str) -> Rounding:
    """The function that rounds a weight to the format of this name. ValueError for a name that is none."""
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
    """bits, per and kind of a format of integers, as `quantize` and `gptq` take them; None for other formats.

    ValueError for a name that is none.
    """
    found = rounding(name)
    return dict(found.keywords) if found.func is quantize else None


def _integers(bits: int, per: str | int, kind: str | None) -> Rounding:
    check_bits(bits)
    return partial(quantize, bits=bits, per=per, kind=kind or ("absmax" if bits == 8 else "minimum"))


def _group(word: str) -> str | int | None:
    if word in (ROW, TENSOR):
        return word
    return int(word[1:]) if re.fullmatch(r"g\d+", word) else None


def _only(found: list, name: str):
    if len(found) > 1:
        raise ValueError(f"{name!r} names {' and '.join(map(str, found))}; choose one of them")
    return found[0] if found else None


ROWS = 256  # of a matrix whose bits are counted: as many as fill all blocks of scales


def round_trip(x: Tensor, name: str) -> Tensor:
    """x (..., K) rounded to the format of this name and back. ValueError as `rounding` and the format have it."""
    return rounding(name)(x).dequantize()


def bits_of(name: str, columns: int) -> float:
    """Bits a weight of a format in rows of so many columns, its share of scales and minima included.

    ValueError for a name that is no format, and for groups that do not divide the columns.
    """
    return rounding(name)(torch.zeros(ROWS, columns)).bits_per_weight


def relative_error(x: Tensor, rounded: Tensor) -> float:
    """Length of the error over the length of x, both of one shape: 0.01 is an error of 1%."""
    return float((rounded - x).norm() / x.norm())


def decibels(x: Tensor, rounded: Tensor) -> float:
    """Signal over noise, 10 log10(sum of x² over sum of error²): 6 dB more halve the error. Infinite without error."""
    noise = (rounded - x).double().square().sum()
    return float(10 * torch.log10(x.double().square().sum() / noise))


def draws(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Values (count,) of laws with ever heavier tails, by name."""
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
