"""Our decoder as a compiled target (lesson 03): a static cache, and one compiled step for each number of tokens.

On a CPU plain `torch.compile` gains little: most of a one-token step is matrix-vector products, and those stay calls of
the same library. Written as sums of products they are compiled with all the rest. On a GPU what costs is launching
hundreds of small kernels: there the compiled step is captured as a CUDA graph and replayed.
Keys and values travel as arguments, so that every prompt may bring its own cache.
After gpt-fast (PyTorch 2023, https://pytorch.org/blog/accelerating-generative-ai-2/).
"""

import weakref
from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor, nn

from lessons_lib.caches.cache import Slots, StaticCache
from lessons_lib.compiler import CompiledStep, CudaGraph, compiler_problem
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment, with_attention
from lessons_lib.progress import say
from lessons_lib.quantization.linear import QuantizedLinear, sharing_copy

MATMULS = ("pointwise", "max-autotune", "library")
POINTWISE_ROWS = 16  # up to which sums beat the library's matmul on a CPU in single precision; in 16 bits it is one
CAPACITY_STEP = 16  # entries by which fitted caches differ: whole vectors, whatever the machine's
# of the tokens, positions and slots of a fitted step, its mask, keys and values: a text's length may change
FITTED = ((), (), (), (None, "capacity"), (None, "capacity", None), (None, "capacity", None))


class CompiledTarget(DecoderTarget):
    """As DecoderTarget, with forward passes of up to max(widths) tokens compiled, others eager.

    context: tokens of every cache, fixed because shapes are compiled.
    widths: token counts to compile for; an input is padded up to the next one.
    matmul: "pointwise" writes those of few tokens as sums of products (of one token in 16 bits) and freezes weights;
    "max-autotune" freezes weights and lets the compiler time its own kernels against the library's; "library" calls
    oneDNN or cuBLAS. Default: "pointwise" on a CPU, "library" on a GPU. Quantized weights bring their own.
    fitted: a cache is only as long as its text needs, up to context, so that attention reads no empty entries; kernels
    are short and compile sooner (`compiler.short_kernels`). Not for the target of a DraftModel, which asks for a cache
    before the text's length is known, and without effect on graphs, which have fixed shapes.
    regional: one layer is compiled for all, which takes a quarter to a half of the time. Needs torch 2.13, and changes
    nothing where the compiler has to see weights as constants ("max-autotune").
    cuda_graph: whether steps are captured and replayed; default: on a GPU.
    problem: why nothing is compiled, None if it is. ValueError for an unknown `matmul`.
    """

    offers = frozenset({"states"})

    def __init__(
        self,
        decoder: Decoder,
        tokenizer=None,
        eos: Sequence[int] = (),
        context: int = 512,
        widths: Sequence[int] = (1,),
        matmul: str | None = None,
        fitted: bool = False,
        regional: bool = False,
        cuda_graph: bool | None = None,
    ):
        super().__init__(decoder, tokenizer, eos)
        self.captures = self.device.type == "cuda" if cuda_graph is None else cuda_graph
        self.matmul = matmul or ("pointwise" if self.device.type == "cpu" else "library")
        if self.matmul not in MATMULS:
            raise ValueError(f"matmul={matmul!r} is not known; choose one of: {', '.join(MATMULS)}")
        self.capacity = min(context, self.context) + max(widths)  # slack: padding is written, too
        self.context, self.widths = min(context, self.context), sorted(widths)
        self.constant = constant(decoder)
        self.max_autotune = self.constant or self.matmul == "max-autotune"
        self.fitted, self.regional = fitted and not self.captures, regional and not self.max_autotune
        self._steps: dict[int, CompiledStep] = {}
        self._graphs: dict[tuple[int, int], CudaGraph] = {}  # (width, a cache's buffers) -> the step captured on them
        self._unused: list[StaticCache] = []  # buffers of texts that are done with, each with its graphs
        self._pool = None
        self.problem: str | None = None
        if problem := compiler_problem(self.device):
            self._give_up(problem)

    @property
    def compile_seconds(self) -> dict[int, float]:
        """Width (tokens) -> seconds that its first call took."""
        return {width: step.seconds for width, step in self._steps.items() if step.seconds is not None}

    def new_cache(self, tokens: int) -> StaticCache:
        """An empty cache of this target's size, or fitted to a text of so many tokens.

        Graphs work on fixed memory: a cache takes over the buffers of one that is gone, with their graphs.
        """
        if not self.captures:
            return self._allocate(tokens)
        buffers = self._unused.pop() if self._unused else self._allocate(tokens)
        cache = copy(buffers)
        cache.keep(0)
        for tensor in (*cache.keys, *cache.values):
            tensor.zero_()  # a NaN of another text would come through the mask: 0 times NaN
        weakref.finalize(cache, self._unused.append, buffers)
        return cache

    def _allocate(self, tokens: int) -> StaticCache:
        c, slack = self.decoder.config, self.capacity - self.context
        whole = -(-tokens // CAPACITY_STEP) * CAPACITY_STEP
        needed = min(self.context, whole) if self.fitted else self.context
        return StaticCache(c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device, capacity=needed + slack)

    def run(self, blocks: Sequence[ModelInput]) -> list[ModelOutput]:
        """Each block in a forward pass of its own -> its scores. Errors as DecoderTarget's."""
        eager = super().run
        return [self._run_compiled(block, w) if (w := self._width(block)) else eager([block])[0] for block in blocks]

    def _width(self, block: ModelInput) -> int | None:
        """The compiled width that a block is padded to, None if it runs eagerly: also where the padding has no room."""
        left = block.cache.capacity - block.cache.length()
        wide_enough = (width for width in self.widths if len(block.tokens) <= width <= left)
        return next(wide_enough, None) if set(block.after) <= {"final"} else None

    def _run_compiled(self, block: ModelInput, width: int) -> ModelOutput:
        count = len(block.tokens)
        padding, cache = [0] * (width - count), block.cache
        tokens = torch.tensor(block.tokens + padding, device=self.device)
        positions = torch.tensor(cache.positions(block.offsets) + padding, device=self.device)
        args = tokens, positions, cache.slots(width), cache.mask(block.mask, count, width), cache.keys, cache.values
        step = self._step(width)
        final, logits = self._graph(step, width, args)(*args) if self.captures else step(*args)
        if step.problem and not self.problem:
            self._give_up(step.problem)
        cache.advance(count)
        rows = slice(count - block.wanted, count)
        return ModelOutput(logits[rows], {name: final[rows] for name in block.after})

    def _step(self, width: int) -> CompiledStep:
        """The compiled step of one width; made when it is first needed."""
        if width not in self._steps:
            few = 1 if self.dtype.itemsize < 4 else POINTWISE_ROWS
            decoder = self.decoder
            if not self.problem:  # else a graph of the eager step
                decoder = for_compiler(decoder, pointwise=self.matmul == "pointwise" and width <= few)
                decoder = compiled_once(decoder) if self.regional else decoder
            step = self._steps[width] = CompiledStep(
                static_step(decoder),
                f"{width}-token step ({self.decoder.config.num_layers} layers, {self.dtype})",
                weights=self.decoder,
                sizes=FITTED if self.fitted else (),
                frozen=freezable(self.decoder) and (self.matmul != "library" or self.constant),
                max_autotune=self.max_autotune,
                short=self.fitted,
            )
            if self.problem:
                step.problem = self.problem
        return self._steps[width]

    def _graph(self, step: CompiledStep, width: int, args: tuple) -> CudaGraph:
        """The step captured on the buffers of these arguments; made when it is first needed."""
        key = width, id(args[-1])  # the graph keeps the list, so that its id stays its own
        if key not in self._graphs:
            self._pool = self._pool or (torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None)
            self._graphs[key] = CudaGraph(step, args, self.decoder, self._pool)
        return self._graphs[key]

    def _give_up(self, problem: str) -> None:
        """Decode uncompiled from now on, and say why. On a GPU graphs of the eager step are left."""
        self.problem = problem
        if not self.captures:
            self.widths = []
        say_uncompiled(problem)


def say_uncompiled(problem: str | None) -> str | None:
    """Tell whoever waits why nothing is compiled, if so; decoding goes on -> the problem, None if there is none."""
    if problem:
        say(f"{problem}; decoding runs uncompiled")
    return problem


# torch 2.11, on a GPU, takes a layer of rounded weights for one whose results share memory, and refuses it
nested = torch.compiler.nested_compile_region if torch.__version__ >= (2, 13) else lambda function: function


@nested
def _called(layer: Callable, *args) -> Tensor:
    return layer(*args)


class OneOfMany(nn.Module):
    """A layer that a compiler takes for the same code as the others of its kind."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, *args) -> Tensor:
        return _called(self.layer, *args)


def compiled_once(decoder: Decoder) -> Decoder:
    """A copy of the decoder of which one layer is compiled for all; weights are shared."""
    copy = sharing_copy(decoder)
    copy.layers = nn.ModuleList(OneOfMany(layer) for layer in copy.layers)
    return copy


def quantized_layers(decoder: Decoder) -> list[QuantizedLinear]:
    """The quantized layers of a decoder."""
    return [module for module in decoder.modules() if isinstance(module, QuantizedLinear)]


def constant(decoder: Decoder) -> bool:
    """Whether a compiler has to see weights as constants, and to tune the matmuls."""
    return any(layer.constant for layer in quantized_layers(decoder))


def freezable(decoder: Decoder) -> bool:
    """Whether a compiler may see weights as constants. It would unpack codes ahead of time and keep them wide."""
    return constant(decoder) or not quantized_layers(decoder)


def for_compiler(decoder: Decoder, pointwise: bool) -> Decoder:
    """The decoder as a compiler makes the most of it: attention in the open, or by the kernel that W4A8 brings.

    pointwise: matmuls of few tokens as sums of products, too. Weights are shared.
    """
    from lessons_lib.quantization.cpu.linear import NativeW4A8Linear
    from lessons_lib.quantization.cpu.pointwise import attend_by_products, attend_natively, pointwise_linears

    native = any(isinstance(layer, NativeW4A8Linear) for layer in quantized_layers(decoder))
    decoder = with_attention(decoder, attend_natively if native else attend_by_products)
    return pointwise_linears(decoder) if pointwise else decoder


def static_step(decoder: Decoder) -> Callable:
    """One forward pass over static buffers as a function of tensors alone, so that it can be compiled.

    It takes tokens, positions and slots (T,), mask (T, capacity), keys and values, each layer's (H_kv, capacity, d)
    -> states after the final norm (T, D) and logits (T, V).
    """

    def step(tokens: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, keys: list, values: list):
        segment = Segment(positions, Slots(keys, values, slots), mask)
        final = decoder.final(decoder(tokens, [segment]).last)
        return final, decoder.score(final)

    return step
