"""The layers of `quantization.linear` with a GPU's kernels (lessons 10, 11); `kernel_of` picks one. W8A8 needs none."""

import torch
from torch import Tensor

from lessons_lib.quantization.formats import Integers
from lessons_lib.quantization.linear import QuantizedLinear, W4A16Linear, W8A16Linear, check_groups, scales_and_zeros

TILE = 16  # codes of a row in one tile; the kernel takes 8, 4 or 2 tiles at a time
GROUPS = (32, 64, 128, 256)


def kernel_of(kind: type[QuantizedLinear], quantized: Integers) -> type[QuantizedLinear] | None:
    """The form of this kind of layer that has a kernel here for the matrix's sizes and dtype; None if none has."""
    rows, columns = quantized.shape
    group = quantized.shape.numel() // len(quantized.grid.scales)
    if kind is W4A16Linear and quantized.dtype == torch.bfloat16 and group in GROUPS and not rows % 16:
        return TinyGemmW4A16Linear if columns % (2 * TILE) == 0 else None
    return FusedW8A16Linear if kind is W8A16Linear else None


class FusedW8A16Linear(W8A16Linear):
    """Compiled, one row is a sum over products: the compiler reads and widens the codes in one loop."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 or not torch.compiler.is_compiling():
            return super().forward(x)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return ((exact * self.codes).sum(-1) * self.scales.to(exact)).to(x.dtype)[None]


class TinyGemmW4A16Linear(QuantizedLinear):
    """W4A16 by torch's kernel for tensor cores (tinygemm), w = (code - 8)·scale + zero; x in bfloat16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for other bits, groups and kinds than the kernel reads."""
        super().__init__(quantized.shape)
        self.group = check_groups(quantized, (4,), GROUPS)
        self.register_buffer("codes", tiles(quantized.levels()))
        self.register_buffer("scales_and_zeros", scales_and_zeros(quantized))

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm(x.contiguous(), self.codes, self.group, self.scales_and_zeros)


def tiles(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15, K a multiple of 32 -> as the kernel reads them, int32 (N / 8, K / 16t, 32, t / 2), t tiles
    at a time."""
    columns = levels.shape[1]
    at_a_time = next(count for count in (8, 4, 2) if columns % (count * TILE) == 0)
    return torch._convert_weight_to_int4pack(in_pairs(levels), at_a_time)


def in_pairs(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> bytes (N, K / 2), uint8: of two neighbours the first is the high half."""
    levels = levels.to(torch.uint8)
    return levels[:, ::2] << 4 | levels[:, 1::2]
