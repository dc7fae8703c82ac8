"""The compiler's global settings, applied only while one of our steps compiles, and where its work is kept."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from lessons_lib.paths import cache_dir


def settings(tuned: bool) -> AbstractContextManager:
    """Frozen weights and autotuned matrix products, or the compiler's defaults."""
    if not tuned:
        return nullcontext()
    import torch._inductor.config as inductor

    return inductor.patch(freezing=True, max_autotune_gemm=True)


def keep_compiled_code() -> None:
    """Let compiled code outlive the process, beside the models, unless the user has chosen a place."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))


def compiler_problem(device: torch.device) -> str | None:
    """Why nothing can be compiled for this device, None if it can."""
    if device.type != "cpu":
        return None
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception:  # inductor raises errors of several kinds, from several places
        return "torch.compile needs a C++ compiler and none was found (install g++ or clang, or set CXX)"
    return None
