"""Two kernels in C++ for CPUs with AVX512-VNNI (lesson 11): what torch's compiler does not make of its operations.

They are compiled by the C++ compiler that torch.compile needs, where they are first needed, and kept beside its code.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.compiler import compiler_problem, keep_compiled_code
from lessons_lib.progress import first_line, say

LANES = 16  # values of single precision in a vector
SOURCES = ("vectors.h", "grouped_rows.cpp", "few_rows.cpp")


@cache
def problem() -> str | None:
    """Why the kernels cannot be had here, None if they can. The first call compiles them, for a quarter of a minute."""
    if not (torch.cpu._is_avx512_supported() and torch.cpu._is_vnni_supported()):
        return "kernels in C++ need a CPU with AVX512-VNNI"
    if uncomputed := compiler_problem(torch.device("cpu")):
        return uncomputed
    from torch._inductor.codecache import CppCodeCache

    keep_compiled_code()
    folder = Path(__file__).parent
    say("loading kernels in C++, compiled where they are not yet ...")
    try:
        CppCodeCache.load("\n".join((folder / name).read_text(encoding="utf-8") for name in SOURCES))
    except Exception as error:  # of torch's code cache, the compiler or the loader
        return f"kernels in C++ were not compiled ({first_line(error)})"
    torch.library.register_fake("lessons_lib::multiply_grouped", _product)
    torch.library.register_fake("lessons_lib::attend_few_rows", _attended)
    return None


def multiply_grouped(x: Tensor, codes: Tensor, grid: Tensor, bits: int) -> Tensor:
    """x (T, K) times codes (N/16, K/32, bytes) with their grid (N/16, K/32, 2, 16) -> (T, N) in x's dtype.

    As `quantization.cpu.layouts` lays them out; x is rounded on the way. ValueError for another K or dtype.
    """
    return torch.ops.lessons_lib.multiply_grouped(x, codes, grid, bits)


def attend_few_rows(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """q (H, T, d), keys and values (H_kv, S, d), mask (T, S) bool, True = may attend -> (H, T, d), in one dtype.

    ValueError for other shapes, d that is no multiple of 16, and other dtypes.
    """
    return torch.ops.lessons_lib.attend_few_rows(q, keys, values, mask)


def _product(x: Tensor, codes: Tensor, grid: Tensor, _bits: int) -> Tensor:
    """What a compiler expects of `multiply_grouped`; lengths that it leaves open stay open."""
    return x.new_empty(x.shape[0], codes.shape[0] * grid.shape[-1])


def _attended(q: Tensor, *_) -> Tensor:
    """What a compiler expects of `attend_few_rows`: its strides, too, are taken at their word."""
    heads, rows, dim = q.shape
    return q.new_empty(rows, heads, dim).transpose(0, 1)
