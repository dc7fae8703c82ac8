"""Products that read weights of 8 or 4 bits as they are kept (lesson 10), those of 4 bits on a CPU (`on_gpu`).

8 bits: w = q·scale, a scale per row. 4 bits: w = (q - 8)·scale + zero, where zero is what a group's middle level stands
for. Where torch's packed kernels are vectorised (`units`) they take products of few rows; elsewhere, and for many rows,
codes are widened bit by bit, or taken out of words that a compiler can read (`words`); on a GPU a compiler reads the
levels of 8 bits as they are, as gpt-fast does (PyTorch 2023,
https://pytorch.org/blog/accelerating-generative-ai-2/).
"""

import torch
from torch import Tensor

from lessons_lib.quantization import units, words
from lessons_lib.quantization.checks import check_cpu
from lessons_lib.quantization.int8_products import signed_rows
from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.matrix import Matrix, multiply_levels

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of x
INT4_GROUPS = (32, 64, 128, 256)
GROUP_SIZES = {group: torch.tensor(group) for group in INT4_GROUPS}  # as an operator wants them
FEW = 4  # rows up to which the packed kernel of 8 bits is the faster one


class Int8Weights(Matrix):
    """Weights (N, K) of 8 bits with a scale per row; x in float32, bfloat16 or float16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but 8 bits, absmax, per row, and for other dtypes."""
        check_packed(quantized.dtype)
        self.levels, self.scales = signed_rows(quantized)
        self.on_cpu = self.levels.device.type == "cpu"
        self.words = words.of_bytes(self.levels) if self.on_cpu else None

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for dtypes other than those three."""
        check_packed(x.dtype)
        if self.on_cpu and units.packed_kernels() and len(x) <= FEW:
            return torch._weight_int8pack_mm(x.contiguous(), self.levels, self.scales.to(x.dtype))
        return multiply_levels(x, self.levels) * self.scales.to(x.dtype)

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`; levels are read as words where four of them fill one, and then x may be of any dtype.

        On a GPU one row is a sum over products: a compiler reads and widens the levels in one loop.
        """
        if self.words is not None:
            return (words.times_bytes(x, self.words) * self.scales.to(x.dtype)).to(x.dtype)
        if self.on_cpu or len(x) > 1:
            return self.multiply(x)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return ((exact * self.levels).sum(-1) * self.scales.to(exact)).to(x.dtype)[None]


class Int4Weights(Matrix):
    """Weights (N, K) of 4 bits in groups for torch's kernel, on a CPU; x in float32, bfloat16 or float16.

    The kernel keeps scale and zero in x's dtype: in bf16 they are rounded once more than in the quantized tensor. Many
    rows go through it, too, though they would be faster with wide weights: codes stand in an order of its own.
    """

    def __init__(self, quantized: Integers):
        """Raises ValueError for what the kernel cannot read: other bits, kinds, groups, sizes, dtypes and devices."""
        check_cpu(quantized.codes)
        self.group = check_int4(quantized, INT4_GROUPS)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(quantized.levels().int(), 1)
        self.scales_and_zeros = scales_and_zeros(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for dtypes other than those three."""
        check_packed(x.dtype)
        both = self.scales_and_zeros.to(x.dtype)
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, self.group, both)

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`, by the operator that torch's compiler would put in its place: in a layer that is compiled once
        for all, it mislays the group's size.
        """
        check_packed(x.dtype)
        both = self.scales_and_zeros.to(x.dtype)
        return torch.ops.quantized.int4mm_packed_weight_cpu(x.contiguous(), self.packed, GROUP_SIZES[self.group], both)


class Int4Words(Matrix):
    """Weights (N, K) of 4 bits in groups of 32 as words (`words`), on a CPU; x in float32, bfloat16 or float16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for other bits, kinds, groups, sizes, dtypes and devices."""
        check_cpu(quantized.codes)
        check_int4(quantized, (words.GROUP,))
        rows = quantized.shape[0]
        self.words = words.pack_nibbles(quantized.levels())
        self.scales, self.lows = (side_by_side(part, rows) for part in (quantized.grid.scales, quantized.grid.lows))

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for dtypes other than those three."""
        check_packed(x.dtype)
        return words.times_nibbles(x, self.words, self.scales, self.lows).to(x.dtype)


def int4_weights(quantized: Integers) -> Matrix:
    """Int4Weights or Int4Words of a matrix (N, K), whichever is fast here. ValueError for what it cannot read."""
    return Int4Weights(quantized) if units.packed_kernels() else Int4Words(quantized)


def side_by_side(part: Tensor, rows: int) -> Tensor:
    """A number for each group (N·groups, 1) of a matrix of N rows -> (N/16, groups, 16): 16 rows, one a lane."""
    return part.view(rows // words.LANES, words.LANES, -1).transpose(1, 2).contiguous()


def check_int4(quantized: Integers, groups: tuple[int, ...]) -> int:
    """The size of its groups. ValueError unless this is a matrix of 4 bits in such groups."""
    check_packed(quantized.dtype)
    grid, rows = quantized.grid, quantized.shape[0]
    group = quantized.shape.numel() // len(grid.scales)
    readable = grid.bits == 4 and grid.lows is not None and group in groups
    if not readable or len(quantized.shape) != 2 or rows % words.LANES:
        raise ValueError(
            'the int4 kernel takes quantize(weight, 4, group, "minimum") of a matrix, rows in multiples of 16 and '
            f"a group of {groups}, not {rows} rows of {grid.bits} bits in groups of {group}; use Plain"
        )
    return group


def scales_and_zeros(quantized: Integers) -> Tensor:
    """(K / group, N, 2) in the matrix's dtype: of each group its scale, and what its middle level stands for."""
    grid, rows = quantized.grid, quantized.shape[0]
    scales, lows = (part.double().view(rows, -1).T for part in (grid.scales, grid.lows))
    return torch.stack([scales, lows + 8 * scales], -1).to(quantized.dtype).contiguous()


def check_packed(dtype: torch.dtype) -> None:
    """Raises ValueError for a dtype of x that the packed kernels do not have."""
    if dtype not in DTYPES:
        raise ValueError(f"the packed kernels take {', '.join(map(str, DTYPES))}, not {dtype}; use Plain")
