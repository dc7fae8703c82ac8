"""Floats of 8 bits (lesson 10): a sign, a few bits of exponent, a few of mantissa, and one scale for many values.

Steps double with every power of two, so small values keep their precision beside a large one: better than integers
for heavy tails, worse for well-behaved tensors. Micikevicius et al. 2022 (arXiv 2209.05433); van Baalen et al. 2023,
FP8 versus INT8 (arXiv 2303.17951), who recommend int8 for inference.

e4m3  4 bits of exponent, 3 of mantissa, no infinity: largest 448, smallest normal 2^-6, smallest 2^-9
e5m2  5 and 2, as IEEE would have it: largest 57,344, smallest normal 2^-14, smallest 2^-16
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.quantization.checks import ROW, blocks, check_values
from lessons_lib.quantization.integers import rounded_up, working_dtype
from lessons_lib.quantization.quantized import Quantized


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
