"""Weights of 4 or 8 bits times inputs of 8, both with a scale per group of 32 (lesson 11): what llama.cpp multiplies.

One scale a group instead of one a row (`int8_products`) leaves a loud value 31 others to spoil, not all of the row, so
that nothing has to be calibrated. With w = q·s + low and x = p·r (q unsigned, p signed, one r a group of 32 inputs),

    y = sum over groups of  s·r·sum(q·p) + low·r·sum(p)

The kernel in C++ (`native`) reads 5 bits of a 4-bit weight and does one instruction for 64 of its products;
torch's compiler has no such loop for groups of 4 bits: to it a nibble is something to be widened first. It runs on CPUs
with AVX512-VNNI; elsewhere rounded inputs meet whatever multiplies such weights.
"""

import torch
from torch import Tensor

from lessons_lib import native
from lessons_lib.quantization.int8_products import rounded_values
from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.linear import weights_alone
from lessons_lib.quantization.matrix import Matrix
from lessons_lib.quantization.packed import DTYPES, side_by_side
from lessons_lib.quantization.words import GROUP, LANES

QUAD = 4  # columns that one instruction adds up


class Grouped(Matrix):
    """Weights (N, K) in groups of 32 times inputs rounded likewise, on any device.

    problem: why the kernel does not multiply, None if it does. x is in float32, bfloat16 or float16; in a dtype for
    which the weights were not quantized only where nothing packed multiplies.
    """

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but 4 or 8 bits, "minimum", groups of 32."""
        _check(quantized)
        self.bits, self.problem = quantized.grid.bits, _problem(quantized)
        self.native = not self.problem
        self.inner = weights_alone(quantized) if self.problem else None
        if self.native:
            self.codes, self.grid = interleaved(quantized.levels(), self.bits), scales_and_lows(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for another K, and for dtypes that the kernel does not take."""
        if self.native:
            return native.multiply_grouped(x, self.codes, self.grid, self.bits)
        return self.inner.multiply(round_groups(x))

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`, with what a compiler reads best where there is no kernel."""
        return self.multiply(x) if self.native else self.inner.traced(round_groups(x))


def round_groups(x: Tensor) -> Tensor:
    """x (T, K) rounded to 8 bits, one scale for 32 values -> the values that these stand for, in x's dtype."""
    return rounded_values(x.reshape(-1, GROUP), 1).view(x.shape).to(x.dtype)


def interleaved(levels: Tensor, bits: int) -> Tensor:
    """levels (N, K) uint8 -> (N/16, K/32, bytes) as the kernel reads them: quads of columns, 16 rows of each.

    A byte of 4-bit codes holds one of an even quad below one of the quad behind it.
    """
    quads = levels.view(len(levels) // LANES, LANES, -1, GROUP // QUAD, QUAD).permute(0, 2, 3, 1, 4)
    if bits == 4:
        quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
    return quads.flatten(2).contiguous()


def scales_and_lows(quantized: Integers) -> Tensor:
    """(N/16, K/32, 2, 16) float16: of each group its scale, and what code 0 stands for."""
    grid, rows = quantized.grid, quantized.shape[0]
    return torch.stack([side_by_side(grid.scales, rows), side_by_side(grid.lows, rows)], 2).contiguous()


def _check(quantized: Integers) -> None:
    grid = quantized.grid
    grouped = len(quantized.shape) == 2 and quantized.shape.numel() == GROUP * len(grid.scales)
    if grid.bits not in (4, 8) or grid.lows is None or not grouped:
        raise ValueError('grouped products take quantize(weight, 4 or 8, 32, "minimum") of a matrix; else use Plain')


def _problem(quantized: Integers) -> str | None:
    """Why the kernel cannot take this matrix, None if it can."""
    if quantized.codes.device.type != "cpu" or quantized.dtype not in DTYPES:
        return f"the kernel is one of the CPU, for {', '.join(map(str, DTYPES))}"
    if quantized.shape[0] % LANES or quantized.grid.scales.dtype != torch.float16:
        return f"the kernel takes rows in multiples of {LANES} and scales in float16"
    return native.problem()
