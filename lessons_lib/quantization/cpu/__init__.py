"""Quantization and matmuls for CPUs only (lessons 10, 11): kernels, packed layouts, matmuls for torch.compile.

linear    the layers of `quantization.linear` with AVX512, VNNI or AVX2 kernels
layouts   packed layouts of the codes
pointwise matmul and attention written as sums, which torch.compile turns into loops that read memory faster
native    two C++ kernels, compiled when first needed
argmax    a faster argmax of logits
"""

import ctypes

import torch

STREAMS = 4  # streams of weights that a GEMV reads at once: a core prefetches within one page, but from many pages
CHUNK = 2**20  # values to materialise at a time: a few MB, so that they stay in the CPU's cache


def packed_kernels() -> bool:
    """Whether torch's packed 8- and 4-bit kernels are vectorised here (AVX512). With AVX2 they process code by code."""
    return torch.cpu._is_avx512_supported()


def integer_units() -> bool:
    """Whether this CPU has VNNI: one instruction multiplies and adds four pairs of 8-bit integers without overflow."""
    return torch.cpu._is_vnni_supported()


def trim_heap() -> None:
    """Return freed memory to the operating system where the C library keeps it.

    glibc keeps pieces below 32 MB, and rounding one model after another (lesson 10) leaves gigabytes of them. Does
    nothing where there is no such call.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # other C libraries, macOS, Windows
        pass
