"""Products that read weights of 4 bits as they are kept, on a GPU (lesson 10): torch's kernel for tensor cores.

It takes bf16 alone, and codes in the order in which its threads want them. After gpt-fast (PyTorch 2023,
https://pytorch.org/blog/accelerating-generative-ai-2/). On an H200 it gave what its codes stand for; without a
GPU sizes are checked, which torch knows, and the order of the codes in a byte.
"""

import torch
from torch import Tensor

from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.matrix import Matrix
from lessons_lib.quantization.packed import INT4_GROUPS, check_int4, scales_and_zeros

TILE = 16  # codes of a row in one tile; the kernel takes 8, 4 or 2 tiles at a time


class Int4Tiles(Matrix):
    """Weights (N, K) of 4 bits in groups with a minimum, w = (q - 8)·scale + zero, on a GPU of CUDA; x in bfloat16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for what the kernel cannot read: a CPU's codes, other dtypes, bits, groups and sizes."""
        if quantized.codes.is_cpu:
            raise ValueError("the GPU's int4 kernel reads no tensor on a CPU; use Int4Weights")
        check_bf16(quantized.dtype)
        self.group = check_int4(quantized, INT4_GROUPS)
        self.packed, self.scales_and_zeros = tiles(quantized.levels()), scales_and_zeros(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) bfloat16 -> (T, N). ValueError for another dtype."""
        check_bf16(x.dtype)
        return torch._weight_int4pack_mm(x.contiguous(), self.packed, self.group, self.scales_and_zeros)


def check_bf16(dtype: torch.dtype) -> None:
    """Raises ValueError for a dtype that the kernel does not have."""
    if dtype != torch.bfloat16:
        raise ValueError(f"the GPU's int4 kernel takes bfloat16, not {dtype}; use Plain")


def tiles(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> as the kernel reads them, int32 (N / 8, K / 16t, 32, t / 2), t tiles at a time.

    StopIteration for K that is no multiple of 32.
    """
    columns = levels.shape[1]
    at_a_time = next(count for count in (8, 4, 2) if columns % (count * TILE) == 0)
    return torch._convert_weight_to_int4pack(in_pairs(levels), at_a_time)


def in_pairs(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> bytes (N, K / 2), uint8: of two neighbours the first is the high half."""
    levels = levels.to(torch.uint8)
    return levels[:, ::2] << 4 | levels[:, 1::2]
