"""Products that read weights of 8 or 4 bits as they are kept, on a GPU (lesson 10).

8 bits: one row is a sum over products, which a compiler turns into one loop that reads codes and casts them on the way;
several rows, and uncompiled steps, write the weights out wide first. 4 bits: torch's kernel for tensor cores, of bf16
alone, for which codes lie in the order in which its threads want them. After gpt-fast (PyTorch 2023,
https://pytorch.org/blog/accelerating-generative-ai-2/). No GPU has run either yet: of the second, what is checked
without one are its sizes, which torch knows, and the order of the codes in a byte.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.quantization.int8_products import signed_rows
from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.matrix import Matrix

GROUPS = (32, 64, 128, 256)  # of 4 bits
TILE = 16  # codes of a row in one tile; the kernel takes 8, 4 or 2 tiles at a time


class Int8Levels(Matrix):
    """Weights (N, K) of 8 bits with a scale per row; any device, x of any floating dtype."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but 8 bits, absmax, per row."""
        self.levels, self.scales = signed_rows(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return F.linear(x, self.levels.to(x.dtype)) * self.scales.to(x.dtype)

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`; one row as a sum, in single precision or better."""
        if len(x) > 1:
            return self.multiply(x)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return ((exact * self.levels).sum(-1) * self.scales.to(exact)).to(x.dtype)[None]


class Int4Tiles(Matrix):
    """Weights (N, K) of 4 bits in groups with a minimum, w = (q - 8)·scale + zero, on a GPU of CUDA; x in bfloat16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for what the kernel cannot read: a CPU's codes, other dtypes, bits, groups and sizes."""
        grid, rows = quantized.grid, quantized.shape[0]
        self.group = quantized.shape.numel() // len(grid.scales)
        fits = grid.bits == 4 and grid.lows is not None and self.group in GROUPS
        if quantized.codes.is_cpu or not fits or quantized.dtype != torch.bfloat16:
            raise ValueError(
                f"the GPU's int4 kernel takes 4 bits, groups of {GROUPS} with a minimum, bfloat16, and no CPU"
            )
        self.packed = tiles(quantized.levels())
        scales, lows = (part.float().view(rows, -1).T for part in (grid.scales, grid.lows))
        self.scales_and_zeros = torch.stack([scales, lows + 8 * scales], -1).to(torch.bfloat16).contiguous()

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) bfloat16 -> (T, N). ValueError for another dtype."""
        if x.dtype != torch.bfloat16:
            raise ValueError(f"the GPU's int4 kernel takes bfloat16, not {x.dtype}; use Plain")
        return torch._weight_int4pack_mm(x.contiguous(), self.packed, self.group, self.scales_and_zeros)


def tiles(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> as the kernel reads them, int32 (N / 8, K / 16t, 32, t / 2), t tiles at a time.

    ValueError for rows that are no multiple of 8, and columns that are none of 32.
    """
    rows, columns = levels.shape
    if rows % 8 or columns % (2 * TILE):
        raise ValueError(f"the GPU's int4 kernel takes N in multiples of 8 and K of 32, not {rows} and {columns}")
    at_a_time = next(count for count in (8, 4, 2) if columns % (count * TILE) == 0)
    return torch._convert_weight_to_int4pack(in_pairs(levels), at_a_time)


def in_pairs(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> bytes (N, K / 2), uint8: of two neighbours the first is the high half."""
    levels = levels.to(torch.uint8)
    return levels[:, ::2] << 4 | levels[:, 1::2]
