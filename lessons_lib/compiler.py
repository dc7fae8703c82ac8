"""torch.compile and CUDA graphs for decoding steps (lesson 03): settings, checked calls, missing compilers.

Dynamo's guards take a noticeable part of a step on a CPU, so they are switched off. `Layout` checks the same conditions
once per call, and faster. The check is necessary: compiled code relies on the sizes, dtypes and addresses that it was
compiled for, and with others it silently reads or overwrites wrong memory.
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


def kept_in_memory(x: Tensor) -> Tensor:
    """Materialise x, so that the compiler does not fuse its computation into every consumer and repeat it per row.

    A strided view needs memory to point to, so the compiler has to write x first. The view itself makes no copy.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


FROZEN = {"freezing": True}
AUTOTUNED = {
    "max_autotune_gemm": True,
    "autotune_num_choices_displayed": 0,  # otherwise every matmul prints a table of its candidates
    "max_autotune_report_choices_stats": False,
}
MOST_ARGUMENTS = "MAX_FUSED_KERNEL_ARGS_NUM"  # inductor's limit for the arguments of a C++ kernel, 500 by default
KEPT_OPERATIONS = "_dont_constant_fold"  # inductor's list of operations that it leaves for run time
ALWAYS = {
    "cpp.enable_kernel_profile": True,  # kernels appear in torch.profiler; no cost without a profiler
    "cpp.enable_floating_point_contract_flag": "fast",  # fused multiply-add: one instruction, rounded once
    "size_asserts": False,  # on some 300 arguments per call; `Layout` checks them
}


@contextmanager
def settings(
    frozen: bool = False, max_autotune: bool = False, short: bool = False, check_indices: bool = True
) -> Iterator[None]:
    """Context manager with the settings of torch.compile for a decoding step, without gradients.

    frozen: treat weights as constants, which the compiler may repack. max_autotune: time several kernels for each
    matmul and keep the fastest. short: see `short_kernels`. check_indices: check every index when it is used; without
    it, an index out of range reads or overwrites wrong memory.
    """
    import torch._inductor.config as inductor

    chosen = ALWAYS | (FROZEN if frozen else {}) | (AUTOTUNED if max_autotune else {})
    chosen |= {"assert_indirect_indexing": check_indices}
    kernels = short_kernels() if short else nullcontext()
    with torch.no_grad(), inductor.patch(chosen), kernels, packed_constants(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # raised by torch's own code
        yield


@contextmanager
def packed_constants() -> Iterator[None]:
    """Keep the compiler from unpacking or casting frozen weights at compile time: it would store, and read, more bytes.

    The list of such operations is private to torch: in versions without it, they are computed at compile time.
    """
    from torch._inductor import constant_folding

    listed = getattr(constant_folding, KEPT_OPERATIONS, [])
    before = len(listed)
    aten, cast = torch.ops.aten, torch.ops.prims.convert_element_type.default
    listed += [aten.view.dtype, aten.constant_pad_nd.default, cast]  # the first two: how unpacking begins
    try:
        yield
    finally:
        del listed[before:]


@contextmanager
def short_kernels() -> Iterator[None]:
    """Limit C++ kernels to 20 arguments each, instead of fusing all layers into one kernel.

    Equal layers then have equal kernels, which are compiled once, so a step compiles faster. A profiler sees parts of
    layers. The limit is private to torch: in versions without it, kernels stay long.
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
    """The properties that compiled code relies on, recorded at its first call and checked at later ones.

    For every argument tensor: shape, strides, dtype and device. For the weights: addresses, which change when a module
    is moved or cast and when a weight is replaced. In-place changes of weights are not detected.
    sizes: for each argument, a name for each dimension that may change from call to call, None for a fixed one.
    Dimensions of one name must be equal in all tensors of a call, and these tensors contiguous.
    """

    def __init__(self, args: Sequence, weights: nn.Module | None = None, sizes: Sequence[Sequence[str | None]] = ()):
        self.sizes = sizes
        self._lists: dict[int, tuple] = {}  # argument index -> first tensor of its last list, sizes, descriptions
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
        """Raise ValueError if the arguments or weights differ from those that the code was compiled for."""
        if self._describe(args) != self.tensors:
            raise ValueError(
                "a compiled step was made for tensors of other shapes, dtypes or devices; let the target that runs a "
                "cache make it (`new_cache`)"
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
        """The description of all arguments: a tuple for each tensor, a list of tuples for each list."""
        found, open_sizes = [], {}
        for index, (arg, names) in enumerate(zip_longest(args, self.sizes, fillvalue=())):
            one = isinstance(arg, Tensor)
            found.append(_describe_one(arg, names, open_sizes) if one else self._list(index, arg, names, open_sizes))
        return found

    def _list(self, index: int, tensors: Sequence[Tensor], names: Sequence, open_sizes: dict[str, int]) -> list:
        """The descriptions of a list of tensors. They are reused while the list has the same first tensor and length.

        So a cache's buffers are described once, not at every step.
        """
        last, own, found = self._lists.get(index, (lambda: None, {}, []))
        if last() is not tensors[0] or len(found) != len(tensors):
            own, before = {}, found
            found = [_describe_one(tensor, names, own) for tensor in tensors]
            found = before if found == before else found
            self._lists[index] = weakref.ref(tensors[0]), own, found
        # dynamic sizes must agree with those of the other arguments
        if any(open_sizes.setdefault(name, size) != size for name, size in own.items()):
            return [*found, "other sizes"]
        return found


def _describe_one(tensor: Tensor, names: Sequence[str | None], open_sizes: dict[str, int]) -> tuple:
    """(shape, strides, dtype, device) of a tensor.

    With named sizes, the shape has the name in place of the size unless another tensor of the call disagrees, and
    strides are replaced by whether the tensor is contiguous.
    """
    if not names:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    shape = [
        name if name and open_sizes.setdefault(name, size) == size else size
        for size, name in zip_longest(tensor.shape, names)
    ]
    return tuple(shape), tensor.is_contiguous(), tensor.dtype, tensor.device


class CompiledStep:
    """A function that is compiled at its first call, and again after `torch.compiler.reset()`.

    name: for messages. weights: the module whose weights the step reads. sizes: as in `Layout`, which checks every
    later call (ValueError). settings: arguments of `settings`. seconds: time of the first call, None before it.
    problem: the reason why the step runs uncompiled, None if it is compiled.
    """

    def __init__(
        self,
        step: Callable,
        name: str,
        weights: nn.Module | None = None,
        sizes: Sequence[Sequence[str | None]] = (),
        **settings: bool,
    ):
        # Dynamo caches compiled code per code object. Without guards, every step needs a code object of its own.
        step.__code__ = step.__code__.replace()
        self.step, self.name, self.weights, self.sizes, self.settings = step, name, weights, sizes, settings
        self.seconds: float | None = None
        self.problem: str | None = None
        self._layout: Layout | None = None
        unguarded = {"guard_filter_fn": lambda guards: [False] * len(guards)}  # `Layout` checks
        self._compiled = torch.compile(step, dynamic=False, fullgraph=True, backend=self._compile, options=unguarded)

    @torch.no_grad()  # as at compile time: in another grad mode torch would compile another graph
    def __call__(self, *args):
        if self.problem:
            return self.step(*args)
        if self.seconds is None:
            return self._first(*args)
        self._layout.check(args)
        try:
            return self._compiled(*args)
        except torch._dynamo.exc.BackendCompilerFailed:  # after a reset: see `_compile`. Nothing has run yet
            return self._first(*args)

    def _first(self, *args):
        # record the layout and mark dynamic sizes before the compiler runs
        keep_compiled_code()
        self.seconds = None
        self._layout = Layout(args, self.weights, self.sizes)
        mark_open_sizes(args, self.sizes)
        say(f"compiling the {self.name} ...")
        since = perf_counter()
        try:
            with settings(**self.settings):
                out = self._compiled(*args)
        except torch._dynamo.exc.ShortenTraceback as error:  # any error of the compiler
            self.problem = f"torch.compile failed ({first_line(error)})"
            return self.step(*args)
        self.seconds = perf_counter() - since
        say(f"compiled in {self.seconds:.0f} s")
        return out

    def _compile(self, graph: torch.fx.GraphModule, inputs: list, **_) -> Callable:
        """The backend: inductor. After a reset, torch calls it without our settings, so we raise and start again."""
        if self.seconds is not None:
            raise RuntimeError("torch.compiler.reset() has thrown the graph away")
        return torch._dynamo.lookup_backend("inductor")(graph, inputs)


def mark_open_sizes(args: Sequence, sizes: Sequence[Sequence[str | None]]) -> None:
    """Mark the dimensions that change from call to call as dynamic, before the compiler sees the arguments.

    For tensors in lists (a cache's buffers) torch raises an error if such a dimension does not stay dynamic; for
    tensor arguments it is only a hint.
    """
    for arg, names in zip(args, sizes, strict=False):
        for dim, name in enumerate(names):
            if name and isinstance(arg, Tensor):
                torch._dynamo.maybe_mark_dynamic(arg, dim)
            elif name:
                for tensor in arg:
                    torch._dynamo.mark_dynamic(tensor, dim)


class CudaGraph:
    """step(*inputs, *buffers) captured once as a CUDA graph and replayed: one launch instead of one per kernel.

    inputs: tensors, copied into the graph's input tensors at every call. buffers: lists of tensors (keys and values of
    a cache), which the graph reads and writes in place, so every call must pass the same ones. Results are copies,
    because the next replay overwrites the graph's outputs. weights: as in CompiledStep. pool: memory pool shared by
    graphs that never run at the same time. ValueError for other arguments, moved weights, or another cache.
    """

    @torch.inference_mode(False)  # a later call may write into its tensors outside inference mode
    def __init__(self, step: Callable[..., tuple[Tensor, ...]], args: Sequence, weights: nn.Module | None, pool=None):
        self.inputs = [arg.clone() for arg in args if isinstance(arg, Tensor)]
        self.buffers = args[len(self.inputs) :]
        self._layout = Layout(args, weights)
        with torch.cuda.device_of(args[0]):  # it may not be the current GPU
            self.replay = capture(step, (*self.inputs, *self.buffers), pool)

    def __call__(self, *args) -> tuple[Tensor, ...]:
        self._layout.check(args)
        if any(own is not given for own, given in zip(self.buffers, args[len(self.inputs) :], strict=True)):
            raise ValueError("this graph writes into the cache it was captured with; capture one for each cache")
        for own, new in zip(self.inputs, args, strict=False):
            own.copy_(new)
        return tuple(result.clone() for result in self.replay())


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which a GPU's graphs are captured: one for all, so that graphs of one pool share memory."""
    return torch.cuda.Stream(device)


@torch.no_grad()
def capture(step: Callable[..., tuple[Tensor, ...]], args: tuple, pool=None) -> Callable[[], tuple[Tensor, ...]]:
    """Capture step(*args) as a CUDA graph -> a function that replays it and returns its output tensors.

    After PyTorch's notes on CUDA graphs: compile first, warm up on a side stream, then capture.
    """
    # compile
    step(*args)
    # warm up
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries allocate their workspaces outside the graph
            step(*args)
    torch.cuda.current_stream().wait_stream(side)
    # capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=capture_stream(args[0].device)):
        out = step(*args)

    def replay(graph=graph, args=args, out=out) -> tuple[Tensor, ...]:  # keeps the graph's tensors alive
        graph.replay()
        return out

    return replay


def keep_compiled_code() -> None:
    """Store compiled code in our cache folder, so that later processes reuse it, unless the user has set a folder.

    torch's own temporary folder is used if our cache folder is not writable or its path has a space, because torch does
    not quote paths when it calls the C++ compiler.
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
    """The reason why torch.compile cannot work on this device, or None. Compiles a test file once per process."""
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
        source.write_text("#include <Python.h>\n")  # needed by every compiled step
        try:
            CppBuilder("probe", [str(source)], CppTorchOptions(warning_all=False), folder).build()
        except Exception:
            return f"the C++ compiler {compiler} compiles nothing (repair it, or set CXX to another)"
    return None


def _quote_library_folders() -> None:
    """Make torch quote the folders of its libraries, which it only does for headers. Needed if its path has a space."""
    from torch._inductor.cpp_builder import BuildOptionsBase

    if os.name != "nt" and any(map(str.isspace, torch.__file__)):
        found = BuildOptionsBase.get_libraries_dirs
        BuildOptionsBase.get_libraries_dirs = lambda self: [shlex.quote(folder) for folder in found(self)]
