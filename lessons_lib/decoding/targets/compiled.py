"""Our decoder as a compiled target (lesson 03): a static cache and one graph per number of tokens.

Plain `torch.compile` gains little on a CPU: most of a one-token step is matrix-vector products, and those stay calls of
the same library. What helps is to take the products out of the library: written as sums over products, they are
compiled with all the rest. Keys and values travel as arguments, so that every prompt may bring its own cache to the
same graph. After gpt-fast (PyTorch 2023, https://pytorch.org/blog/accelerating-generative-ai-2/).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor
from torch._dynamo import lookup_backend
from torch._dynamo.exc import BackendCompilerFailed, ShortenTraceback

from lessons_lib.caches.cache import Slots, StaticCache
from lessons_lib.compiler import compiler_problem, keep_compiled_code, settings
from lessons_lib.decoding.blocks import Block, Scores
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.kernels import FUSED, OPEN, Kernels, attend_natively
from lessons_lib.progress import first_line, say
from lessons_lib.quantization.linear import Products


class CompiledStep:
    """step(*tensors), compiled at the first call, and again after a `torch.compiler.reset()`.

    name: what is said to be compiling. frozen, tuned, short, indices_checked: see `compiler.settings`. prepare: is
    given the tensors whenever they are about to be compiled for. seconds: what the first call took, None before it.
    problem: why the step is not compiled and runs as it is, None if it is. Errors are the step's.
    """

    def __init__(
        self,
        step: Callable,
        name: str,
        frozen: bool,
        tuned: bool,
        short: bool = False,
        indices_checked: bool = True,
        prepare: Callable = lambda *args: None,
    ):
        step.__code__ = step.__code__.replace()  # its own copy: graphs are kept with the code, a handful at most
        self.step, self.name = step, name
        self.chosen = dict(frozen=frozen, tuned=tuned, short=short, indices_checked=indices_checked)
        self.prepare = prepare
        self.seconds: float | None = None
        self.problem: str | None = None
        # checks before every call would take up to 1 ms, and find nothing: what they look for never changes here
        unchecked = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        self._compiled = torch.compile(step, dynamic=False, fullgraph=True, backend=self._compile, options=unchecked)

    @torch.no_grad()  # as the step was compiled: a graph for another mode would be another graph
    def __call__(self, *args):
        if self.problem:
            return self.step(*args)
        if self.seconds is None:
            return self._first(*args)
        try:
            return self._compiled(*args)
        except BackendCompilerFailed:  # the graph was thrown away: see `_compile`; nothing has run yet
            return self._first(*args)

    def _first(self, *args):
        keep_compiled_code()
        self.seconds = None
        self.prepare(*args)
        say(f"compiling the {self.name} ...")
        since = perf_counter()
        try:
            with settings(**self.chosen):
                out = self._compiled(*args)
        except ShortenTraceback as error:  # of the compiler, whatever it lacks
            self.problem = f"torch.compile failed ({first_line(error)})"
            return self.step(*args)
        self.seconds = perf_counter() - since
        say(f"compiled in {self.seconds:.0f} s")
        return out

    def _compile(self, graph: torch.fx.GraphModule, inputs: list, **_) -> Callable:
        """The compiler. After a reset torch asks for it without our settings, which it needs before it comes here."""
        if self.seconds is not None:
            raise RuntimeError("torch.compiler.reset() has thrown the graph away")
        return lookup_backend("inductor")(graph, inputs)


def say_uncompiled(problem: str | None) -> str | None:
    """Tell whoever waits why nothing is compiled, if so; decoding goes on -> the problem, None if there is none."""
    if problem:
        say(f"{problem}; decoding runs uncompiled")
    return problem


PRODUCTS = ("open", "tuned", "library")
FEW = 16  # rows up to which sums beat the library's products in single precision
STEP = 16  # slots by which fitted caches differ: whole vectors, whatever the machine's


class CompiledTarget(DecoderTarget):
    """As DecoderTarget, with forwards of up to max(widths) tokens compiled, others eager.

    context: tokens of every cache, fixed because shapes are compiled. fitted: caches are only as long as their text
    needs, up to context, and compiled code leaves their length open: a step attends to no slot that is never filled.
    Not for the target of a DraftModel, which asks for a cache without knowing how long the text will be.
    Its kernels are short (`compiler.short_kernels`), so that it compiles sooner and a profiler tells less.
    widths: token counts to compile for; a block is padded up to the next one.
    products: with "open" those of few rows are written as sums (of one row in 16 bits, since the library has units for
    several) and weights are frozen; "tuned" freezes weights and lets the compiler tune every product;
    "library" leaves products to the library and weights as they are. A rounded decoder's products are its own, with
    weights frozen and products tuned where its matrices ask for that.
    once: one layer is compiled for all, not each with its neighbours. Of 30 layers that took a quarter (bf16) to a half
    (int4, "library") of the time, and a step 8% more (bf16) or as long. It changes nothing before torch 2.13, nor where
    products are tuned: they want constants, and a layer that serves for all takes its weights as arguments; and little
    where caches are fitted.
    problem: why nothing is compiled, None if it is. ValueError for `products` that there are not, and no widths.
    """

    offers = frozenset({"states"})

    def __init__(
        self,
        decoder: Decoder,
        tokenizer=None,
        eos: Sequence[int] = (),
        context: int = 512,
        widths: Sequence[int] = (1,),
        products: str = "open",
        fitted: bool = False,
        once: bool = False,
    ):
        if products not in PRODUCTS:
            raise ValueError(f"products={products!r} is not known; choose one of: {', '.join(PRODUCTS)}")
        super().__init__(decoder, tokenizer, eos)
        self.capacity = min(context, self.context) + max(widths)  # slack: padding is written, too
        self.context, self.products, self.widths = min(context, self.context), products, sorted(widths)
        own = decoder.kernels.multiply
        self.constant = isinstance(own, Products) and own.constant
        self.tuned = self.constant or products == "tuned"
        self.fitted, self.once = fitted, once and not self.tuned
        self._steps: dict[int, CompiledStep] = {}
        self.problem: str | None = None
        if problem := compiler_problem(self.device):
            self._give_up(problem)

    @property
    def compile_seconds(self) -> dict[int, float]:
        """Width (tokens) -> seconds that its first call took."""
        return {width: step.seconds for width, step in self._steps.items() if step.seconds is not None}

    def new_cache(self, tokens: int) -> StaticCache:
        """An empty cache of this target's size, or fitted to a text of so many tokens."""
        c, slack = self.decoder.config, self.capacity - self.context
        needed = min(self.context, -(-tokens // STEP) * STEP) if self.fitted else self.context
        return StaticCache(c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device, capacity=needed + slack)

    def run(self, blocks: Sequence[Block]) -> list[Scores]:
        """Each block in a forward of its own -> its scores. Errors as DecoderTarget's."""
        eager = super().run
        return [self._run_compiled(block, w) if (w := self._width(block)) else eager([block])[0] for block in blocks]

    def _width(self, block: Block) -> int | None:
        """The compiled width that a block is padded to, None if it runs eagerly: also where the padding has no room."""
        left = block.cache.capacity - block.cache.length()
        wide_enough = (width for width in self.widths if len(block.tokens) <= width <= left)
        return next(wide_enough, None) if set(block.after) <= {"final"} else None

    def _run_compiled(self, block: Block, width: int) -> Scores:
        count = len(block.tokens)
        padding, cache = [0] * (width - count), block.cache
        tokens = torch.tensor(block.tokens + padding, device=self.device)
        positions = torch.tensor(cache.positions(block.offsets) + padding, device=self.device)
        slots, mask = cache.slots(width), cache.mask(block.mask, count, width)
        step = self._step(width)
        final, logits = step(tokens, positions, slots, mask, cache.keys, cache.values)
        if step.problem:
            self._give_up(step.problem)
        cache.advance(count)
        rows = slice(count - block.wanted, count)
        return Scores(logits[rows], {name: final[rows] for name in block.after})

    def _step(self, width: int) -> CompiledStep:
        """The compiled step of one width; made when it is first needed."""
        if width not in self._steps:
            few = 1 if self.dtype.itemsize < 4 else FEW
            opened = self.products == "open" and width <= few
            name = f"{width}-token step ({self.decoder.config.num_layers} layers, {self.dtype})"
            frozen = self.products != "library" or self.constant
            how = dict(frozen=frozen, tuned=self.tuned, short=self.fitted)
            how |= {"prepare": leave_length_open} if self.fitted else {}
            kernels = kernels_of(self.decoder, opened)
            step = static_step(self.decoder, replace(kernels, run=compiled_once) if self.once else kernels)
            self._steps[width] = CompiledStep(step, name, **how)
        return self._steps[width]

    def _give_up(self, problem: str) -> None:
        """Decode uncompiled from now on, and say why."""
        self.problem, self.widths = problem, []
        say_uncompiled(problem)


# torch 2.11, on a GPU, takes a layer of rounded weights for one whose results share memory, and refuses it
nested = torch.compiler.nested_compile_region if torch.__version__ >= (2, 13) else lambda function: function


@nested
def compiled_once(layer: Callable, *args) -> Tensor:
    """layer(*args), which a compiler takes for the same code in every layer."""
    return layer(*args)


def kernels_of(decoder: Decoder, opened: bool) -> Kernels:
    """How a compiled forward computes: in the open for one row, by the library, and by what the decoder brings."""
    kernels, own = OPEN if opened else FUSED, decoder.kernels.multiply
    if not isinstance(own, Products):
        return kernels
    attend = attend_natively if own.native else kernels.attend
    return replace(kernels, attend=attend, multiply=own.compiled(kernels.multiply))


def leave_length_open(*tensors) -> None:
    """Tell the compiler, before it sees what `static_step` takes, that masks and caches of other lengths will come."""
    *_, mask, keys, values = tensors
    for buffer in (*keys, *values):
        torch._dynamo.mark_dynamic(buffer, 1)
    torch._dynamo.maybe_mark_dynamic(mask, 1)  # as long as the buffers, which the compiler finds out


def static_step(decoder: Decoder, kernels: Kernels) -> Callable:
    """One forward over static buffers as a function of tensors alone, so that it can be compiled.

    It takes tokens, positions and slots (T,), mask (T, capacity), keys and values, each layer's (H_kv, capacity, d)
    -> states after the final norm (T, D) and logits (T, V).
    """

    def step(tokens: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, keys: list, values: list):
        segment = Segment(positions, Slots(keys, values, slots), mask)
        final = decoder.final(decoder(tokens, [segment], kernels=kernels).last)
        return final, decoder.score(final, kernels)

    return step
