"""What this CPU has for weights of few bits (lesson 10): by these two, torch's kernels are chosen."""

import torch


def packed_kernels() -> bool:
    """Whether torch's packed kernels of 8 and 4 bits are vectorised here (AVX512). With AVX2 they go code by code."""
    return torch.cpu._is_avx512_supported()


def integer_units() -> bool:
    """Whether one instruction multiplies and adds four pairs of 8-bit integers (VNNI), without overflow in between."""
    return torch.cpu._is_vnni_supported()
