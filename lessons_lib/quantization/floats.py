"""Floats of few bits (lesson 10): NF4, whose levels are quantiles of a normal distribution, and FP8."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.quantization.integers import (
    ROW,
    Integers,
    Quantized,
    blocks,
    check_values,
    pack,
    quantize,
    rounded_up,
    unpack,
    working_dtype,
)

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

    double: quantize the scales as well. A block must divide K.
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


FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


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
    and in e4m3 NaN before torch 2.12. A group must divide K.
    """
    check_values(x)
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    # scale every block so that its largest value becomes the format's largest number
    kind = FORMATS[format]
    largest = torch.finfo(kind).max
    values = blocks(x.detach().to(working_dtype(x.dtype)), per)
    scales = rounded_up(values.abs().amax(1, True) / largest, torch.float32)
    scales = scales.clamp_min(torch.finfo(torch.float32).tiny)  # smaller scales are subnormal and lose precision
    codes = (values / scales.to(values)).clamp(-largest, largest).to(kind)
    return SmallFloats(x.shape, x.dtype, codes.view(x.shape), scales)
