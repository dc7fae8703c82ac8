"""Our decoder as a compiled target (lesson 03): a static cache, and one compiled step for each number of tokens.

On a CPU, plain `torch.compile` gains little: most of a one-token step is matrix-vector products (GEMV), which remain
calls to the same library. Written as sums of elementwise products, they are compiled together with everything else. On
a GPU, launching hundreds of small kernels dominates, so the compiled step is captured as a CUDA graph and replayed.
Keys and values are arguments of the step, so that every prompt can have its own cache.
After gpt-fast (PyTorch 2023, https://pytorch.org/blog/accelerating-generative-ai-2/).
"""

import weakref
from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor, nn

from lessons_lib.caches.cache import StaticBuffers, StaticCache
from lessons_lib.compiler import CompiledStep, CudaGraph, compiler_problem
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment, with_attention
from lessons_lib.progress import say
from lessons_lib.quantization.linear import QuantizedLinear, sharing_copy

POINTWISE_ROWS = 16  # sums beat the CPU library's matmul up to so many tokens in float32, for 1 token in 16 bits
CAPACITY_STEP = 16  # fitted capacities are multiples of it: whole vectors on any CPU
# Dynamic sizes of a fitted step's arguments: tokens, positions, entries, mask, keys, values.
FITTED = ((), (), (), (None, "capacity"), (None, "capacity", None), (None, "capacity", None))


class CompiledTarget(DecoderTarget):
    """A DecoderTarget whose forward passes of up to max(widths) tokens are compiled; longer ones run eagerly.

    context: tokens of every cache. It is fixed because shapes are compiled.
    widths: numbers of tokens to compile for. An input is padded up to the next one.
    fitted: make each cache only as long as its text needs, up to context, so that attention reads no empty entries.
    Kernels are then short and compile faster (`compiler.short_kernels`). Do not use it for the target of a DraftModel,
    which creates its cache before the length of the text is known. No effect with CUDA graphs, whose shapes are fixed.
    regional: compile one layer for all, which takes less time. Needs torch 2.13. No effect if quantized
    layers need their weights as constants.
    cuda_graph: capture steps and replay them; default: only on a GPU.
    problem: the reason why nothing is compiled, None if the step is compiled.
    """

    offers = frozenset({"states"})  # no layer ranges: the compiled step is one graph of all layers

    def __init__(
        self,
        decoder: Decoder,
        tokenizer=None,
        eos: Sequence[int] = (),
        context: int = 512,
        widths: Sequence[int] = (1,),
        fitted: bool = False,
        regional: bool = False,
        cuda_graph: bool | None = None,
    ):
        super().__init__(decoder, tokenizer, eos)
        self.captures = self.device.type == "cuda" if cuda_graph is None else cuda_graph
        self.pointwise = self.device.type == "cpu"  # matmuls as sums of products; a GPU calls cuBLAS
        self.capacity = min(context, self.context) + max(widths)  # slack for padding tokens
        self.context, self.widths = min(context, self.context), sorted(widths)
        self.constant = any(layer.constant for layer in quantized_layers(decoder))  # oneDNN's kernel needs constants
        self.fitted, self.regional = fitted and not self.captures, regional and not self.constant
        self._steps: dict[int, CompiledStep] = {}
        self._graphs: dict[tuple[int, int], CudaGraph] = {}  # (width, id of a cache's buffers) -> its graph
        self._unused: list[StaticCache] = []  # buffers of finished texts, to be reused with their graphs
        self._pool = None
        self.problem: str | None = None
        if problem := compiler_problem(self.device):
            self._give_up(problem)

    @property
    def compile_seconds(self) -> dict[int, float]:
        """{width in tokens: seconds of its first call, compilation included}."""
        return {width: step.seconds for width, step in self._steps.items() if step.seconds is not None}

    def new_cache(self, tokens: int) -> StaticCache:
        """An empty cache of this target's size, or, if fitted, of the size of a text of `tokens` tokens.

        CUDA graphs use fixed memory addresses, so a new cache reuses the buffers and graphs of a cache that is no
        longer in use.
        """
        if not self.captures:
            return self._allocate(tokens)
        with torch.inference_mode(False):  # a later text may write into them outside inference mode
            buffers = self._unused.pop() if self._unused else self._allocate(tokens)
        cache = copy(buffers)  # shares the tensors; `buffers` keeps them when this cache is gone
        cache.keep(0)
        for tensor in (*cache.keys, *cache.values):
            tensor.zero_()  # a NaN of another text would pass through the mask: 0 · NaN is NaN
        weakref.finalize(cache, self._unused.append, buffers)
        return cache

    def _allocate(self, tokens: int) -> StaticCache:
        c, slack = self.decoder.config, self.capacity - self.context
        whole = -(-tokens // CAPACITY_STEP) * CAPACITY_STEP
        needed = min(self.context, whole) if self.fitted else self.context
        return StaticCache(c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device, capacity=needed + slack)

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run a forward pass for each input, one after another -> the output of each."""
        return [
            self._run_compiled(model_input, width)
            if (width := self._width(model_input))
            else self._run_eagerly(model_input)
            for model_input in inputs
        ]

    def _run_eagerly(self, model_input: ModelInput) -> ModelOutput:
        return super().run([model_input])[0]

    def _width(self, model_input: ModelInput) -> int | None:
        """The compiled width to pad an input to. None if it runs eagerly, for example if the padding has no room."""
        left = model_input.cache.capacity - model_input.cache.length()
        wide_enough = (width for width in self.widths if len(model_input.tokens) <= width <= left)
        return next(wide_enough, None) if set(model_input.after) <= {"final"} else None

    def _run_compiled(self, model_input: ModelInput, width: int) -> ModelOutput:
        count, cache = len(model_input.tokens), model_input.cache
        args = self._arguments(model_input, width)
        # run the step, as a CUDA graph or directly
        step = self._step(width)
        final, logits = self._graph(step, width, args)(*args) if self.captures else step(*args)
        if step.problem and not self.problem:
            self._give_up(step.problem)
        # the padding's entries are overwritten by the next tokens
        cache.advance(count)
        rows = slice(count - model_input.wanted, count)
        return ModelOutput(logits[rows], {name: final[rows] for name in model_input.after})

    def _arguments(self, model_input: ModelInput, width: int) -> tuple:
        """Arguments of the compiled step for an input padded to `width` tokens."""
        count, cache = len(model_input.tokens), model_input.cache
        padding = [0] * (width - count)
        tokens = torch.tensor(model_input.tokens + padding, device=self.device)
        positions = torch.tensor(cache.positions(model_input.offsets) + padding, device=self.device)
        mask = cache.mask(model_input.mask, count, width)
        return tokens, positions, cache.new_entries(width), mask, cache.keys, cache.values

    def _function(self, decoder: Decoder) -> Callable:
        """The step to compile, as a function of `_arguments`."""
        return static_step(decoder)

    def _step(self, width: int) -> CompiledStep:
        """The compiled step of one width, created on first use."""
        if width not in self._steps:
            few = 1 if self.dtype.itemsize < 4 else POINTWISE_ROWS
            decoder = self.decoder
            if not self.problem:  # else the graph captures the eager step
                decoder = for_compiler(decoder, pointwise=self.pointwise and width <= few)
                decoder = compiled_once(decoder) if self.regional else decoder
            step = self._steps[width] = CompiledStep(
                self._function(decoder),
                f"{width}-token step ({self.decoder.config.num_layers} layers, {self.dtype})",
                weights=self.decoder,
                sizes=FITTED if self.fitted else (),
                frozen=self.pointwise or self.constant,
                max_autotune=self.constant,
                short=self.fitted,
            )
            if self.problem:
                step.problem = self.problem
        return self._steps[width]

    def _graph(self, step: CompiledStep, width: int, args: tuple) -> CudaGraph:
        """The CUDA graph of the step on the buffers of these arguments, captured on first use."""
        key = width, id(args[-1])  # the graph keeps the list alive, so no other list can get its id
        if key not in self._graphs:
            self._pool = self._pool or (torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None)
            self._graphs[key] = CudaGraph(step, args, self.decoder, self._pool)
        return self._graphs[key]

    def _give_up(self, problem: str) -> None:
        """Decode uncompiled from now on, and report why. CUDA graphs then capture the eager step."""
        self.problem = problem
        if not self.captures:
            self.widths = []
        say_uncompiled(problem)


def say_uncompiled(problem: str | None) -> str | None:
    """Print why nothing is compiled, if there is a problem -> the problem."""
    if problem:
        say(f"{problem}; decoding runs uncompiled")
    return problem


# torch 2.11 on a GPU rejects layers of quantized weights, because it assumes that their outputs share memory
nested = torch.compiler.nested_compile_region if torch.__version__ >= (2, 13) else lambda function: function


@nested
def _called(layer: Callable, *args) -> Tensor:
    return layer(*args)


class OneOfMany(nn.Module):
    """A wrapper that makes the compiler compile equal layers once."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, *args) -> Tensor:
        return _called(self.layer, *args)


def compiled_once(decoder: Decoder) -> Decoder:
    """A copy of the decoder, with shared weights, in which one layer is compiled for all (regional compilation)."""
    copy = sharing_copy(decoder)
    copy.layers = nn.ModuleList(OneOfMany(layer) for layer in copy.layers)
    return copy


def quantized_layers(decoder: Decoder) -> list[QuantizedLinear]:
    """The quantized layers of a decoder."""
    return [module for module in decoder.modules() if isinstance(module, QuantizedLinear)]


def for_compiler(decoder: Decoder, pointwise: bool) -> Decoder:
    """A copy of the decoder, with shared weights, that compiles to faster code.

    Attention is written as plain operations that the compiler can fuse, or calls our C++ kernel if the decoder has
    W4A8 layers. pointwise: write the linear layers as sums of products as well.
    """
    from lessons_lib.quantization.cpu.linear import NativeW4A8Linear
    from lessons_lib.quantization.cpu.pointwise import attend_by_products, attend_natively, pointwise_linears

    native = any(isinstance(layer, NativeW4A8Linear) for layer in quantized_layers(decoder))
    decoder = with_attention(decoder, attend_natively if native else attend_by_products)
    return pointwise_linears(decoder) if pointwise else decoder


def static_step(decoder: Decoder) -> Callable:
    """One forward pass over static buffers, as a function of tensors only, so that it can be compiled.

    The function takes tokens, positions and indices of the new cache entries (T,), mask (T, capacity), and per layer
    keys and values (H_kv, capacity, d) -> hidden states after the final norm (T, D) and logits (T, V).
    """

    def step(tokens: Tensor, positions: Tensor, entries: Tensor, mask: Tensor, keys: list, values: list):
        segment = Segment(positions, StaticBuffers(keys, values, entries), mask)
        final = decoder.final(decoder(tokens, [segment]).last)
        return final, decoder.score(final)

    return step
