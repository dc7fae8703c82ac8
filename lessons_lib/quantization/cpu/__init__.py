"""What only CPUs need (lessons 10, 11): kernels for quantized layers, packed layouts, matmuls that a compiler can fuse.

linear    forms of the layers of `quantization.linear` with kernels of AVX512, VNNI or AVX2; layouts: how codes lie
pointwise matmul and attention written as sums, which torch.compile turns into loops that read memory faster
native    two kernels in C++, compiled when they are first needed
"""

import torch

from lessons_lib.quantization.cpu.pointwise import (
    attend_by_products,
    multiply_by_products,
    pointwise_linears,
    with_linears,
)

__all__ = [
    "attend_by_products",
    "pointwise_linears",
    "integer_units",
    "multiply_by_products",
    "packed_kernels",
    "with_linears",
]


def packed_kernels() -> bool:
    """Whether torch's packed kernels of 8 and 4 bits are vectorised here (AVX512). With AVX2 they go code by code."""
    return torch.cpu._is_avx512_supported()


def integer_units() -> bool:
    """Whether one instruction multiplies and adds four pairs of 8-bit integers (VNNI), without overflow in between."""
    return torch.cpu._is_vnni_supported()
