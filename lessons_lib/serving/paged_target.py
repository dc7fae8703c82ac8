"""The engine's targets (lesson 05): one forward pass over many sequences with a paged KV cache, eager or compiled."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from lessons_lib.caches.paged import PagedCache, PagedMemory, Pages
from lessons_lib.compiler import CompiledStep, compiler_problem, kept_in_memory
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.compiled import CompiledTarget, say_uncompiled
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment, attend, with_attention


class PagedTarget(DecoderTarget):
    """A DecoderTarget with a paged KV cache of `num_blocks` blocks of `block_size` tokens.

    All sequences that feed one token share one attention call. Longer inputs have an attention call each.
    """

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), *, num_blocks: int, block_size: int):
        super().__init__(with_attention(decoder, attend_either), tokenizer, eos)
        c, self.sizes = decoder.config, dict(num_blocks=num_blocks, block_size=block_size)
        shape = c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device
        self.memory = PagedMemory(*shape, blocks=num_blocks, block_size=block_size)

    def new_cache(self, tokens: int) -> PagedCache:
        """A cache without blocks. A block pool allocates blocks to it later."""
        return PagedCache(self.memory, [])

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run one packed forward pass over all inputs -> the output of each."""
        outputs = super().run(inputs)
        for model_input in filter(decodes, inputs):  # other inputs counted their entries as they were appended
            model_input.cache.advance(1)
        return outputs

    def rank(self, model_input: ModelInput) -> tuple[bool, int]:
        """As DecoderTarget.rank, but inputs that decode come first."""
        return not decodes(model_input), model_input.first_layer

    def segments(self, inputs: Sequence[ModelInput]) -> list[Segment]:
        """One segment for all inputs that decode, then one for each other input."""
        rows = [model_input.cache for model_input in inputs if decodes(model_input)]
        return ([self.decode_segment(rows)] if rows else []) + super().segments(inputs[len(rows) :])

    def decode_segment(self, caches: Sequence[PagedCache]) -> Segment:
        """One segment for sequences that feed one token each. Checks for room before anything is written."""
        starts, used, to_clear = zip(*(cache.room(1) for cache in caches), strict=True)
        self.memory.clear([*chain.from_iterable(to_clear)])
        positions = torch.tensor(starts, device=self.device)
        tables = torch.tensor(self.memory.padded(used), device=self.device)
        pages = Pages(self.memory.keys, self.memory.values, positions, tables)
        return Segment(positions, pages, pages.visible())


def decodes(model_input: ModelInput) -> bool:
    """Whether the input is one token that attends to all tokens before it, and enters at the first layer."""
    return len(model_input.tokens) == 1 and model_input.mask is None and model_input.states is None


def attend_pages(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Paged attention with one query per row: q (H, rows, d), keys and values (rows, n, H_kv, P, d) -> (H, rows, d).

    visible (rows, n, P) bool: the mask. Two batched matmuls over all blocks, and a softmax over the blocks of each row.
    Masked values have weight 0, so they must be finite. In the shapes below g = H / H_kv.
    """
    # group the queries by KV head
    heads, rows, dim = q.shape
    blocks, kv_heads, size = keys.shape[1:4]
    grouped = q.transpose(0, 1).reshape(rows, 1, kv_heads, -1, dim)
    # softmax over all entries of a row
    scores = (grouped @ keys.transpose(-1, -2)).permute(0, 2, 3, 1, 4).flatten(3) * dim**-0.5  # (rows, H_kv, g, n · P)
    weights = scores.masked_fill(~visible.flatten(1)[:, None, None], float("-inf")).softmax(-1)
    # weighted sum of the values, over the blocks too
    weights = weights.unflatten(3, (blocks, size)).permute(0, 3, 1, 2, 4)  # (rows, n, H_kv, g, P)
    return (weights @ values).sum(1).reshape(rows, heads, dim).transpose(0, 1)


def attend_either(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`attend_pages` for keys (rows, n, H_kv, P, d) of a batch; `attend` for keys (H_kv, S, d) of one sequence."""
    return (attend_pages if keys.dim() == 5 else attend)(q, keys, values, mask)


COMPILED = dict(frozen=True, max_autotune=True, check_indices=False)  # `_call` checks the indices
# Dynamic sizes of the step's arguments: tokens, positions, block tables, indices of the wanted logits.
SIZES = (("rows",), ("rows",), ("rows", "blocks"), ("wanted",))
# Limits in (query, key) pairs of attention, measured on two CPU cores with AVX512-bf16:
LONG = 2**14  # a prompt with more pairs runs faster eagerly
WASTE = 2**13  # more pairs of padding take longer than another forward pass


class CompiledPagedTarget(PagedTarget):
    """A PagedTarget with a compiled step for decoding, chains of draft tokens and short prompts (see `LONG`).

    The step runs rows of one token each; an input of several tokens takes several rows with one block table.
    max_num_seqs: batch size that the step is tuned for; any other also runs. sizes: num_blocks and block_size, as in
    PagedTarget. problem: the reason why nothing is compiled, None if the step is compiled.
    """

    offers = CompiledTarget.offers

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), *, max_num_seqs: int, **sizes: int):
        super().__init__(decoder, tokenizer, eos, **sizes)
        self.max_num_seqs, self.problem = max_num_seqs, say_uncompiled(compiler_problem(self.device))
        name = f"step of many rows ({decoder.config.num_layers} layers, {self.dtype})"
        self.step = CompiledStep(paged_step(decoder), name, decoder, SIZES, **COMPILED)

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run the inputs in compiled forward passes, and the others in an eager one -> the output of each."""
        fast = [i for i, model_input in enumerate(inputs) if is_rows(model_input)] if self._compiled() else []
        rest = [i for i in range(len(inputs)) if i not in fast]
        outputs = dict(zip(rest, super().run([inputs[i] for i in rest]), strict=True)) if rest else {}
        for part in passes([inputs[i] for i in fast]):
            outputs |= dict(zip([fast[i] for i in part], self._run([inputs[fast[i]] for i in part]), strict=True))
        return [outputs[i] for i in range(len(inputs))]

    def _compiled(self) -> bool:
        """Compile the step if necessary -> whether it is compiled.

        It is tuned on max_num_seqs padding rows in the null block, because the first inputs may have another size.
        """
        if self.step.seconds is None and not self.problem:
            self._call([([0] * self.max_num_seqs, [0] * self.max_num_seqs, [], self.max_num_seqs)])
            self.problem = say_uncompiled(self.step.problem)
        return not self.problem

    def _run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        # positions and block tables, before anything is written
        rows, to_clear, counts = [], [], [model_input.wanted for model_input in inputs]
        for model_input in inputs:
            start, used, new = model_input.cache.room(len(model_input.tokens))
            rows.append(
                (model_input.tokens, [start + offset for offset in model_input.offsets], used, model_input.wanted)
            )
            to_clear += new
        logits = self._call(rows, to_clear)
        for model_input in inputs:
            model_input.cache.advance(len(model_input.tokens))
        return [ModelOutput(one) for one in logits[: sum(counts)].split(counts)]

    def _call(
        self, rows: Sequence[tuple[list[int], list[int], list[int], int]], to_clear: Sequence[int] = ()
    ) -> Tensor:
        """Call the compiled step -> logits, first those of the wanted tokens of each input.

        rows: (tokens, positions, block table, number of last tokens whose logits are wanted) of each input.
        to_clear: blocks to clear first. The compiled step does not check indices, so they are checked here.
        """
        # one row per token
        tokens, positions, tables, wanted = [], [], [], []
        for new, at, table, count in rows:
            tokens += new
            positions += at
            tables += [table] * len(new)
            wanted += range(len(tokens) - count, len(tokens))
        # pad to sizes of at least 2: torch.compile specialises on a dynamic size of 1
        if len(tokens) == 1:
            tokens, positions, tables = tokens + [0], positions + [0], tables + [[]]
        wanted = wanted * 2 if len(wanted) == 1 else wanted
        tables = self.memory.padded(tables, at_least=2)
        # check the indices, clear blocks, run
        check("token", tokens, self.vocab_size)
        check("position", positions, self.context)
        check("block", [*chain.from_iterable(tables)], self.memory.null_block + 1)
        self.memory.clear(to_clear)
        given = [torch.tensor(numbers, device=self.device) for numbers in (tokens, positions, tables, wanted)]
        return self.step(*given, self.memory.keys, self.memory.values)


def check(name: str, numbers: Sequence[int], count: int) -> None:
    """Check that all numbers are from 0 to count - 1."""
    if min(numbers) < 0 or max(numbers) >= count:
        raise IndexError(f"{name}s {min(numbers)} to {max(numbers)} are not all within 0 to {count - 1}")


def is_rows(model_input: ModelInput) -> bool:
    """Whether an input can run in the compiled step as rows of one token, and is short enough to be faster there."""
    count = len(model_input.tokens)
    short = count == 1 or count * (model_input.cache.length() + count) <= LONG
    return short and model_input.mask is None and not model_input.after


def passes(inputs: Sequence[ModelInput]) -> Iterator[list[int]]:
    """Group inputs into forward passes, short texts first -> indices of the inputs of each pass.

    All rows of a pass read as many entries as the longest. A pass ends before its padding exceeds `WASTE`.
    """
    part, rows, pairs = [], 0, 0
    ends = [model_input.cache.length() + len(model_input.tokens) for model_input in inputs]
    for i in sorted(range(len(inputs)), key=ends.__getitem__):
        count = len(inputs[i].tokens)
        if part and rows * ends[i] - pairs > WASTE:
            yield part
            part, rows, pairs = [], 0, 0
        part, rows, pairs = [*part, i], rows + count, pairs + count * ends[i]
    if part:
        yield part


def attend_pages_by_sums(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """As `attend_pages`, with the matmuls written as sums of elementwise products.

    The compiler fuses those into loops that read every block in place. A matmul would need a copy of the blocks.
    """
    heads, rows, dim = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    q = kept_in_memory(q.transpose(0, 1)).reshape(rows, 1, keys.shape[2], -1, 1, dim)
    queries = q.unbind(3)  # g queries share keys; one loop over g separate sums reads keys and values only once
    # scores q · k, masked
    scores = torch.stack([(one * keys).sum(-1, dtype=exact) for one in queries], 3) * dim**-0.5
    scores = scores.masked_fill(~visible[:, :, None, None], float("-inf"))  # (rows, n, H_kv, g, P)
    # softmax: the division by the sum of weights comes last
    weights = (scores - scores.amax((1, 4), keepdim=True)).exp()
    sums = torch.stack([(one[..., None] * values).sum((1, 3)) for one in weights.unbind(3)], 2)
    sums = sums / weights.sum((1, 4))[..., None]
    return sums.to(q.dtype).reshape(rows, heads, dim).transpose(0, 1)


def paged_step(decoder: Decoder, cache=Pages) -> Callable:
    """One forward pass over rows of one token each, as a function of tensors only, so that it can be compiled.

    The function takes tokens (rows,), positions, tables, keys and values as in Pages, and the indices `wanted` (w,) of
    rows -> logits (w, V). cache: the class for keys and values, with the constructor of Pages.
    """
    decoder = with_attention(decoder, attend_pages_by_sums)

    def step(tokens: Tensor, positions: Tensor, tables: Tensor, wanted: Tensor, keys: list, values: list):
        pages = cache(keys, values, positions, tables)
        segment = Segment(positions, pages, pages.visible())
        return decoder.logits(decoder(tokens, [segment]).last[wanted])

    return step
