"""The layers of `quantization.linear` with GPU kernels (lessons 10, 11). `kernel_of` picks one; W8A8 needs none."""

import torch
from torch import Tensor

from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.linear import QuantizedLinear, W4A16Linear, W8A16Linear, check_groups, scales_and_zeros

TILE = 16  # codes of a row in one tile; the kernel reads 8, 4 or 2 tiles at a time
GROUPS = (32, 64, 128, 256)


def kernel_of(kind: type[QuantizedLinear], quantized: Integers) -> type[QuantizedLinear] | None:
    """The version of this layer that has a kernel for the matrix's shape and dtype; None if there is none."""
    rows, columns = quantized.shape
    group = quantized.shape.numel() // len(quantized.grid.scales)
    if kind is W4A16Linear and quantized.dtype == torch.bfloat16 and group in GROUPS and not rows % 16:
        return TinyGemmW4A16Linear if columns % (2 * TILE) == 0 else None
    return FusedW8A16Linear if kind is W8A16Linear else None


class FusedW8A16Linear(W8A16Linear):
    """W8A16 for torch.compile: with one row of x, reading and converting the codes becomes one loop.

    torch's own kernel for 8-bit weights (`_weight_int8pack_mm`) gives one thread a whole row, in float32 alone: on a
    GPU neighbouring threads then read far apart (pytorch pull requests 159325 and 190529).
    """

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 or not torch.compiler.is_compiling():
            return super().forward(x)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return ((exact * self.codes).sum(-1) * self.scales.to(exact)).to(x.dtype)[None]


class TinyGemmW4A16Linear(QuantizedLinear):
    """W4A16 by torch's tensor core kernel (tinygemm): w = (code - 8)·scale + zero; x in bfloat16."""

    def __init__(self, quantized: Integers):
        """quantized: 4 bits, kind "affine", a group size in GROUPS."""
        super().__init__(quantized.shape)
        self.group = check_groups(quantized, (4,), GROUPS)
        self.register_buffer("codes", tiles(quantized.levels()))
        self.register_buffer("scales_and_zeros", scales_and_zeros(quantized))

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm(x.contiguous(), self.codes, self.group, self.scales_and_zeros)


def tiles(levels: Tensor) -> Tensor:
    """Codes (N, K) 0 .. 15, K a multiple of 32 -> the kernel's layout, int32 (N / 8, K / 16t, 32, t / 2).

    t: number of tiles that the kernel reads at a time.
    """
    columns = levels.shape[1]
    at_a_time = next(count for count in (8, 4, 2) if columns % (count * TILE) == 0)
    return torch._convert_weight_to_int4pack(in_pairs(levels), at_a_time)


def in_pairs(levels: Tensor) -> Tensor:
    """Pack codes (N, K) 0 .. 15 into bytes (N, K / 2), uint8; the first of two neighbours is the high half."""
    levels = levels.to(torch.uint8)
    return levels[:, ::2] << 4 | levels[:, 1::2]
