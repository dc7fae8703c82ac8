"""torch.compile for decoding steps: settings, what is missing on this machine, and where compiled code is kept."""

import os
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from lessons_lib.paths import cache_dir

PLACES = 4  # where a one-row product reads at once: a core fetches ahead by itself within a page, and from many pages
CHUNK = 2**20  # values that are written out at a time: a few MB, so that they stay in a CPU's cache


def kept_in_memory(x: Tensor) -> Tensor:
    """x itself, in memory. A compiler that fuses too well would compute it again for each row that reads it.

    A strided view needs memory to point at, so what it looks at is written out first; it costs no copy.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


FROZEN = {"freezing": True}
TUNED = {
    "max_autotune_gemm": True,
    "autotune_num_choices_displayed": 0,  # else every product prints a table of its candidates
    "max_autotune_report_choices_stats": False,
}
MOST_ARGUMENTS = "MAX_FUSED_KERNEL_ARGS_NUM"  # of a C++ kernel, 500 by default
ALWAYS = {
    "cpp.enable_kernel_profile": True,  # kernels appear in torch.profiler; costs nothing while nobody profiles
    "cpp.enable_floating_point_contract_flag": "fast",  # multiply and add in one instruction, rounded once
    "size_asserts": False,  # of some 300 arguments at every call
}


@contextmanager
def settings(
    frozen: bool = False, tuned: bool = False, short: bool = False, indices_checked: bool = True
) -> Iterator[None]:
    """Frozen weights, autotuned matrix products, or the compiler's defaults; without gradients, silently.

    Freezing turns parameters into constants, which the compiler may repack; that is only allowed where no
    gradient can be asked for. short: see `short_kernels`. indices_checked: whether every number that looks a row up is
    checked whenever it does; without it, one out of range reads or overwrites what lies there.
    """
    import torch._inductor.config as inductor

    chosen = ALWAYS | (FROZEN if frozen else {}) | (TUNED if tuned else {})
    chosen |= {"assert_indirect_indexing": indices_checked}
    kernels = short_kernels() if short else nullcontext()
    with torch.no_grad(), inductor.patch(chosen), kernels, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # of torch, about itself
        yield


@contextmanager
def short_kernels() -> Iterator[None]:
    """A new C++ kernel whenever one takes more than 20 arguments, instead of one for all layers.

    Layers are alike, and so are their kernels then, which are compiled once: a step compiles in about half the time. A
    profiler sees parts of layers. What torch keeps the number in is its own affair: where it has another name, kernels
    stay long.
    """
    from torch._inductor.codegen.cpp import CppScheduling

    before = getattr(CppScheduling, MOST_ARGUMENTS, None)
    if before is None:
        yield
        return
    setattr(CppScheduling, MOST_ARGUMENTS, 20)
    try:
        yield
    finally:
        setattr(CppScheduling, MOST_ARGUMENTS, before)


def keep_compiled_code() -> None:
    """Let compiled code outlive the process, beside the models, unless the user has chosen a place.

    Where our cache cannot be written, or lies at a path with a space, which torch does not quote when it hands its
    files to the C++ compiler, torch's own temporary folder serves.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder, chosen = cache_dir() / "compiled", os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if chosen not in (None, default_cache_dir()):  # torch sets the variable itself when its compiler is imported
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK) and not any(map(str.isspace, str(folder))):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def compiler_problem(device: torch.device) -> str | None:
    """Why nothing can be compiled for this device, None if it can. One small file is compiled, once a process."""
    return _gpu_problem() if device.type in ("cuda", "xpu") else _cpp_problem() if device.type == "cpu" else None


@cache
def _gpu_problem() -> str | None:
    from torch.utils._triton import has_triton

    return None if has_triton() else "torch.compile needs Triton and a GPU that it knows (install triton)"


@cache
def _cpp_problem() -> str | None:
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions, get_cpp_compiler

    _quote_library_folders()
    try:
        compiler = get_cpp_compiler()
    except Exception:  # inductor raises errors of several kinds, from several places
        return "torch.compile needs a C++ compiler and none was found (install g++ or clang, or set CXX)"
    with TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("#include <Python.h>\n")  # as every compiled step begins
        try:
            CppBuilder("probe", [str(source)], CppTorchOptions(warning_all=False), folder).build()
        except Exception:
            return f"the C++ compiler {compiler} compiles nothing (repair it, or set CXX to another)"
    return None


def _quote_library_folders() -> None:
    """Let torch find its own libraries at a path with a space: it quotes folders of headers, but not these."""
    from torch._inductor.cpp_builder import BuildOptionsBase

    if os.name != "nt" and any(map(str.isspace, torch.__file__)):
        found = BuildOptionsBase.get_libraries_dirs
        BuildOptionsBase.get_libraries_dirs = lambda self: [shlex.quote(folder) for folder in found(self)]
