"""Two C++ kernels for CPUs with AVX512-VNNI (lesson 11), for operations that torch.compile does not make fast.

They are compiled on first use by the C++ compiler that torch.compile needs, and cached beside its code.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.compiler import compiler_problem, keep_compiled_code
from lessons_lib.progress import first_line, say

LANES = 16  # float32 values in a vector register
SOURCES = ("vectors.h", "grouped_rows.cpp", "few_rows.cpp")


@cache
def problem() -> str | None:
    """Why the kernels are not available here; None if they are. The first call compiles them, which takes a while."""
    if not (torch.cpu._is_avx512_supported() and torch.cpu._is_vnni_supported()):
        return "kernels in C++ need a CPU with AVX512-VNNI"
    if problem_found := compiler_problem(torch.device("cpu")):
        return problem_found
    from torch._inductor.codecache import CppCodeCache

    keep_compiled_code()
    folder = Path(__file__).parent
    say("loading kernels in C++, compiled where they are not yet ...")
    try:
        CppCodeCache.load("\n".join((folder / name).read_text(encoding="utf-8") for name in SOURCES))
    except Exception as error:  # from torch's code cache, the compiler or the loader
        return f"kernels in C++ were not compiled ({first_line(error)})"
    torch.library.register_fake("lessons_lib::multiply_grouped", _product)
    torch.library.register_fake("lessons_lib::attend_few_rows", _attended)
    return None


def multiply_grouped(x: Tensor, codes: Tensor, grid: Tensor, bits: int) -> Tensor:
    """W4A8 matmul: x (T, K), codes (N/16, K/32, bytes), scales and minima (N/16, K/32, 2, 16) -> (T, N) in x's dtype.

    The layouts are those of `quantization.cpu.layouts`; x is rounded by the kernel.
    """
    return torch.ops.lessons_lib.multiply_grouped(x, codes, grid, bits)


def attend_few_rows(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention for few queries: q (H, T, d), keys and values (H_kv, S, d), mask (T, S) bool -> (H, T, d).

    mask: True = may attend. All tensors have one dtype; d is a multiple of 16.
    """
    return torch.ops.lessons_lib.attend_few_rows(q, keys, values, mask)


def _product(x: Tensor, codes: Tensor, grid: Tensor, _bits: int) -> Tensor:
    """Output of `multiply_grouped` for torch.compile; symbolic sizes stay symbolic."""
    return x.new_empty(x.shape[0], codes.shape[0] * grid.shape[-1])


def _attended(q: Tensor, *_) -> Tensor:
    """Output of `attend_few_rows` for torch.compile, with the same strides, which it relies on."""
    heads, rows, dim = q.shape
    return q.new_empty(rows, heads, dim).transpose(0, 1)
