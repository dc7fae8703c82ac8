"""NF4 (lesson 10): 16 levels where a normal distribution has its mass, and scales that are quantized, too.

Dettmers et al. 2023, QLoRA (arXiv 2305.14314): weights of a trained layer are close to normal, so the levels are
quantiles of N(0, 1) and lie closest where most weights are. Zero is a level of its own, which makes the halves
unequal: 7 levels below it, 8 above. Blocks of 64 share the largest absolute value as their scale.

Double quantization rounds the scales, 32 bits each, to 8 bits in blocks of 256: 4 + 32/64 = 4.5 bits a weight become
4 + 8/64 + 32/(64·256) = 4.127. The paper rounds the scales to 8-bit floats, we to integers of 8 bits: as many bytes.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.quantization.checks import blocks, check_values
from lessons_lib.quantization.integers import Integers, quantize, rounded_up, working_dtype
from lessons_lib.quantization.packing import pack, unpack
from lessons_lib.quantization.quantized import Quantized

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
