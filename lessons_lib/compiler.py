"""torch.compile and CUDA graphs for decoding steps (lesson 03): settings, checked calls, what this machine lacks.

Dynamo's guards take up to a millisecond a call, a tenth of a step, so they are left out. What they protect is checked
once per call here, in less than a tenth of that: compiled code reads memory by the sizes, types and addresses
it was made for, and would read or overwrite anything else without a word.
"""

import os
import shlex
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor, nn

from lessons_lib.paths import cache_dir
from lessons_lib.progress import first_line, say

PLACES = 4  # where a matrix-vector product reads at once: a core prefetches within a page, and from many pages
CHUNK = 2**20  # values that are written out at a time: a few MB, so that they stay in a CPU's cache


def kept_in_memory(x: Tensor) -> Tensor:
    """x itself, in memory. A compiler that fuses too well would compute it again for each row that reads it.

    A strided view needs memory to point at, so what it looks at is written out first; it costs no copy.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


FROZEN = {"freezing": True}
AUTOTUNED = {
    "max_autotune_gemm": True,
    "autotune_num_choices_displayed": 0,  # else every matmul prints a table of its candidates
    "max_autotune_report_choices_stats": False,
}
MOST_ARGUMENTS = "MAX_FUSED_KERNEL_ARGS_NUM"  # of a C++ kernel, 500 by default
ALWAYS = {
    "cpp.enable_kernel_profile": True,  # kernels appear in torch.profiler; costs nothing while nobody profiles
    "cpp.enable_floating_point_contract_flag": "fast",  # multiply and add in one instruction, rounded once
    "size_asserts": False,  # of some 300 arguments at every call; `Layout` checks them
}


@contextmanager
def settings(
    frozen: bool = False, max_autotune: bool = False, short: bool = False, check_indices: bool = True
) -> Iterator[None]:
    """Settings of torch.compile for a decoding step, without gradients.

    frozen: weights are constants, which the compiler may repack. max_autotune: it times several kernels for each
    matmul and keeps the fastest. short: see `short_kernels`. check_indices: every index is checked when it is used;
    without it, one that is out of range reads or overwrites what lies there.
    """
    import torch._inductor.config as inductor

    chosen = ALWAYS | (FROZEN if frozen else {}) | (AUTOTUNED if max_autotune else {})
    chosen |= {"assert_indirect_indexing": check_indices}
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


class Layout:
    """What compiled code relies on, taken from the arguments of its first call and compared with those of later ones.

    Of every tensor shape, strides, dtype and device; of the weights their addresses, which change when a module is
    moved or cast and when a weight is replaced. Weights that are changed in place are not noticed.
    sizes: for each argument the names of sizes that may change from call to call, None for a fixed one. Sizes of one
    name are equal in all tensors of a call, and their tensors contiguous.
    """

    def __init__(self, args: Sequence, weights: nn.Module | None = None, sizes: Sequence[Sequence[str | None]] = ()):
        self.sizes = sizes
        self._lists: dict[int, tuple] = {}  # argument -> its last list's first tensor, and what was found in that list
        self.tensors = self._describe(args)
        self._weights = [
            (of, name)
            for module in (weights.modules() if weights else ())
            for of in (module._parameters, module._buffers)
            for name, tensor in of.items()
            if tensor is not None
        ]
        self._addresses = self._current_addresses()

    def check(self, args: Sequence) -> None:
        """ValueError for arguments or weights other than those the code was made for."""
        found = self._describe(args)
        if found != self.tensors:
            made_for, given = next(
                pair for pair in zip_longest(_flat(self.tensors), _flat(found)) if pair[0] != pair[1]
            )
            raise ValueError(
                f"a compiled step was made for {_words(made_for)} and is given {_words(given)}; let the target that "
                "runs a cache make it (`new_cache`)"
            )
        if self._current_addresses() != self._addresses:
            raise ValueError(
                "the model's weights were moved, cast or replaced after its step was compiled; make a new target of it"
            )

    def _current_addresses(self) -> list[int] | None:
        try:
            return [of[name].data_ptr() for of, name in self._weights]
        except (KeyError, AttributeError):  # a weight is gone
            return None

    def _describe(self, args: Sequence) -> list:
        """A tuple for each tensor, a list of them for each list."""
        found, open_sizes = [], {}
        for index, (arg, names) in enumerate(zip_longest(args, self.sizes, fillvalue=())):
            one = isinstance(arg, Tensor)
            found.append(_describe_one(arg, names, open_sizes) if one else self._list(index, arg, names, open_sizes))
        return found

    def _list(self, index: int, tensors: Sequence[Tensor], names: Sequence, open_sizes: dict[str, int]) -> list:
        """The tuples of a list. A cache's buffers are looked at once, not at every step: `check` sees the same list."""
        last, own, found = self._lists.get(index, (lambda: None, {}, []))
        if last() is not tensors[0] or len(found) != len(tensors):
            own, before = {}, found
            found = [_describe_one(tensor, names, own) for tensor in tensors]
            found = before if found == before else found
            self._lists[index] = weakref.ref(tensors[0]), own, found
        if any(open_sizes.setdefault(name, size) != size for name, size in own.items()):
            return [*found, "other sizes"]
        return found


def _flat(described: list) -> Iterator[tuple | str]:
    """The tuples of all tensors, one after another."""
    for one in described:
        yield from one if isinstance(one, list) else [one]


def _describe_one(tensor: Tensor, names: Sequence[str | None], open_sizes: dict[str, int]) -> tuple:
    """Shape, strides, dtype, device; a named size stands as its name, unless another tensor of the call disagrees."""
    if not names:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    shape = [
        name if name and open_sizes.setdefault(name, size) == size else size
        for size, name in zip_longest(tensor.shape, names)
    ]
    return tuple(shape), tensor.is_contiguous(), tensor.dtype, tensor.device


def _words(described: tuple | str | None) -> str:
    """A tensor's description in an error."""
    if not isinstance(described, tuple):
        return described or "fewer tensors"
    shape, _, dtype, device = described
    return f"({', '.join(map(str, shape))}) {str(dtype).removeprefix('torch.')} on {device}"


class CompiledStep:
    """step(*args), compiled at the first call, and again after a `torch.compiler.reset()`.

    name: for messages. weights: the module whose weights the step reads. sizes: see `Layout`, which checks every later
    call (ValueError). settings: those of `settings`. seconds: what the first call took, None before it. problem: why
    the step is not compiled and runs as it is, None if it is compiled.
    """

    def __init__(
        self,
        step: Callable,
        name: str,
        weights: nn.Module | None = None,
        sizes: Sequence[Sequence[str | None]] = (),
        **settings: bool,
    ):
        step.__code__ = step.__code__.replace()  # Dynamo keeps code by this object: without guards, one step each
        self.step, self.name, self.weights, self.sizes, self.settings = step, name, weights, sizes, settings
        self.seconds: float | None = None
        self.problem: str | None = None
        self._layout: Layout | None = None
        unguarded = {"guard_filter_fn": lambda guards: [False] * len(guards)}  # `Layout` checks instead
        self._compiled = torch.compile(step, dynamic=False, fullgraph=True, backend=self._compile, options=unguarded)

    @torch.no_grad()  # as the step was compiled: a graph for another mode would be another graph
    def __call__(self, *args):
        if self.problem:
            return self.step(*args)
        if self.seconds is None:
            return self._first(*args)
        self._layout.check(args)
        try:
            return self._compiled(*args)
        except torch._dynamo.exc.BackendCompilerFailed:  # thrown away: see `_compile`; nothing has run yet
            return self._first(*args)

    def _first(self, *args):
        keep_compiled_code()
        self.seconds = None
        self._layout = Layout(args, self.weights, self.sizes)
        mark_open_sizes(args, self.sizes)
        say(f"compiling the {self.name} ...")
        since = perf_counter()
        try:
            with settings(**self.settings):
                out = self._compiled(*args)
        except torch._dynamo.exc.ShortenTraceback as error:  # of the compiler, whatever it lacks
            self.problem = f"torch.compile failed ({first_line(error)})"
            return self.step(*args)
        self.seconds = perf_counter() - since
        say(f"compiled in {self.seconds:.0f} s")
        return out

    def _compile(self, graph: torch.fx.GraphModule, inputs: list, **_) -> Callable:
        """The compiler. After a reset torch asks for it without our settings, which it needs before it comes here."""
        if self.seconds is not None:
            raise RuntimeError("torch.compiler.reset() has thrown the graph away")
        return torch._dynamo.lookup_backend("inductor")(graph, inputs)


def mark_open_sizes(args: Sequence, sizes: Sequence[Sequence[str | None]]) -> None:
    """Tell the compiler, before it sees the arguments, which sizes will change.

    The buffers of a list have to stay open (torch raises an error if one does not); a tensor beside them may follow.
    """
    for arg, names in zip(args, sizes, strict=False):
        for dim, name in enumerate(names):
            if name and isinstance(arg, Tensor):
                torch._dynamo.maybe_mark_dynamic(arg, dim)
            elif name:
                for tensor in arg:
                    torch._dynamo.mark_dynamic(tensor, dim)


class CudaGraph:
    """step(*inputs, *buffers) captured once as a CUDA graph and replayed: one launch instead of one for every kernel.

    inputs are tensors, copied into the graph's own at every call. buffers are lists of tensors, a cache's keys and
    values, which the graph reads and writes in place, so they are the same ones at every call. Results are copies,
    since the next replay overwrites the graph's. weights: as of CompiledStep. pool: memory that graphs share which are
    replayed one after another. ValueError for other arguments, moved weights, or another cache.
    """

    def __init__(self, step: Callable[..., tuple[Tensor, ...]], args: Sequence, weights: nn.Module | None, pool=None):
        self.inputs = [arg.clone() for arg in args if isinstance(arg, Tensor)]
        self.buffers = args[len(self.inputs) :]
        self._layout = Layout(args, weights)
        self.replay = capture(step, (*self.inputs, *self.buffers), pool)

    def __call__(self, *args) -> tuple[Tensor, ...]:
        self._layout.check(args)
        if any(own is not given for own, given in zip(self.buffers, args[len(self.inputs) :], strict=True)):
            raise ValueError("this graph writes into the cache it was captured with; capture one for each cache")
        for own, new in zip(self.inputs, args, strict=False):
            own.copy_(new)
        return tuple(result.clone() for result in self.replay())


@torch.no_grad()
def capture(step: Callable[..., tuple[Tensor, ...]], args: tuple, pool=None) -> Callable[[], tuple[Tensor, ...]]:
    """step(*args) as a CUDA graph -> its replay, which launches all kernels at once and returns the tensors they fill.

    After PyTorch's notes on CUDA graphs: compile first, warm up on a side stream, then capture.
    """
    step(*args)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries allocate their workspaces outside the graph
            step(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = step(*args)

    def replay(graph=graph, args=args, out=out) -> tuple[Tensor, ...]:  # keeps alive what the graph works on
        graph.replay()
        return out

    return replay


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
