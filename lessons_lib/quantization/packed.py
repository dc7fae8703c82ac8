"""torch's packed CPU kernels (lesson 10): products that read weights of 8 or 4 bits as they are kept.

8 bits: w = q·scale, a scale per row, weights row after row. 4 bits: w = (q - 8)·scale + zero, where zero is what a
group's middle level stands for, and weights in an order of the kernel's own.
"""

import torch
from torch import Tensor

from lessons_lib.quantization.checks import check_cpu
from lessons_lib.quantization.int8_products import signed_rows
from lessons_lib.quantization.integers import Integers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of x
INT4_GROUPS = (32, 64, 128, 256)


class Int8Weights:
    """Weights (N, K) of 8 bits with a scale per row, on a CPU; x in float32, bfloat16 or float16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but 8 bits, absmax, per row, and for other dtypes and devices."""
        check_cpu(quantized.codes, "the int8 kernel")
        check_packed(quantized.dtype)
        self.levels, self.scales = signed_rows(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        check_packed(x.dtype)
        return torch._weight_int8pack_mm(x.contiguous(), self.levels, self.scales.to(x.dtype))


class Int4Weights:
    """Weights (N, K) of 4 bits in groups, on a CPU; x in float32, bfloat16 or float16.

    The kernel keeps scale and zero in x's dtype: in bf16 they are rounded once more than in the quantized tensor.
    """

    def __init__(self, quantized: Integers):
        """Raises ValueError for what the kernel cannot read: other bits, kinds, groups, sizes, dtypes and devices."""
        check_cpu(quantized.codes, "the int4 kernel")
        check_packed(quantized.dtype)
        grid, rows = quantized.grid, quantized.shape[0]
        self.group = quantized.shape.numel() // len(grid.scales)
        readable = grid.bits == 4 and grid.lows is not None and self.group in INT4_GROUPS
        if not readable or len(quantized.shape) != 2 or rows % 16:
            raise ValueError(
                'the int4 kernel takes quantize(weight, 4, group, "minimum") of a matrix, rows in multiples of 16 and '
                f"a group of {INT4_GROUPS}, not {rows} rows of {grid.bits} bits in groups of {self.group}; use Plain"
            )
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(quantized.levels().int(), 1)
        scales, lows = (part.double().view(rows, -1).T for part in (grid.scales, grid.lows))
        self.scales_and_zeros = torch.stack([scales, lows + 8 * scales], -1).to(quantized.dtype).contiguous()

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        check_packed(x.dtype)
        both = self.scales_and_zeros.to(x.dtype)
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, self.group, both)


def check_packed(dtype: torch.dtype) -> None:
    """Raises ValueError for a dtype of x that the packed kernels do not have."""
    if dtype not in DTYPES:
        raise ValueError(f"the packed kernels take {', '.join(map(str, DTYPES))}, not {dtype}; use Plain")
