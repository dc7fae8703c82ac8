"""The engine's targets (lesson 05): one forward pass over many sequences in a paged KV cache, eager and compiled."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from lessons_lib.caches.paged import PagedCache, PagedMemory, Pages
from lessons_lib.compiler import CompiledStep, compiler_problem, kept_in_memory
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.compiled import freezable, say_uncompiled
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment, States, attend, with_attention


class PagedTarget(DecoderTarget):
    """As DecoderTarget, on one memory of `num_blocks` blocks of `block_size` tokens; caches come without any.

    tokenizer, eos: as DecoderTarget takes them. CacheFullError where a row's blocks have no room for its new tokens.
    """

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), *, num_blocks: int, block_size: int):
        super().__init__(with_attention(decoder, attend_either), tokenizer, eos)
        c, self.sizes = decoder.config, dict(num_blocks=num_blocks, block_size=block_size)
        shape = c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device
        self.memory = PagedMemory(*shape, blocks=num_blocks, block_size=block_size)

    def new_cache(self, tokens: int) -> PagedCache:
        """A cache without blocks: whoever has a block pool gives it some."""
        return PagedCache(self.memory, [])

    def run(self, blocks: Sequence[ModelInput]) -> list[ModelOutput]:
        """One packed forward for all blocks, those of one token first -> the scores of each, logits (wanted, V)."""
        order = sorted(range(len(blocks)), key=lambda i: not decodes(blocks[i]))
        scores = dict(zip(order, super().run([blocks[i] for i in order]), strict=True))
        return [scores[i] for i in range(len(blocks))]

    def forward(self, tokens: Tensor, blocks: Sequence[ModelInput], layers: Sequence[int]) -> States:
        """tokens (T,) of all blocks -> their states as DecoderTarget has them; the rows that decode are one segment."""
        rows = [block.cache for block in blocks if decodes(block)]
        segments = [self.together(rows)] if rows else []
        segments += [self.segment(block) for block in blocks[len(rows) :]]
        states = self.decoder(tokens, segments, after=layers)
        for cache in rows:
            cache.advance(1)
        return states

    def together(self, caches: Sequence[PagedCache]) -> Segment:
        """Rows that feed one token each, as one segment. CacheFullError before anything is written."""
        starts, used, begun = zip(*(cache.room(1) for cache in caches), strict=True)
        self.memory.clear([*chain.from_iterable(begun)])
        positions = torch.tensor(starts, device=self.device)
        tables = torch.tensor(self.memory.padded(used), device=self.device)
        pages = Pages(self.memory.keys, self.memory.values, positions, tables)
        return Segment(positions, pages, pages.visible())


def decodes(block: ModelInput) -> bool:
    """Whether a row feeds one token that sees all before it."""
    return len(block.tokens) == 1 and block.mask is None


def attend_pages(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """q (H, rows, d), a query a row; keys, values (rows, n, H_kv, P, d); visible (rows, n, P) bool -> (H, rows, d).

    Two matmuls over all blocks at once, and a softmax over the blocks of a row. Values that are not visible have weight
    0, so they must be finite.
    """
    heads, rows, dim = q.shape
    blocks, kv_heads, size = keys.shape[1:4]
    grouped = q.transpose(0, 1).reshape(rows, 1, kv_heads, -1, dim)
    scores = (grouped @ keys.transpose(-1, -2)).permute(0, 2, 3, 1, 4).flatten(3) * dim**-0.5  # (rows, H_kv, g, n · P)
    weights = scores.masked_fill(~visible.flatten(1)[:, None, None], float("-inf")).softmax(-1)
    weights = weights.unflatten(3, (blocks, size)).permute(0, 3, 1, 2, 4)  # (rows, n, H_kv, g, P)
    return (weights @ values).sum(1).reshape(rows, heads, dim).transpose(0, 1)


def attend_either(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`attend_pages` for many rows together, keys (rows, n, H_kv, P, d); `attend` for one sequence's, (H_kv, S, d)."""
    return (attend_pages if keys.dim() == 5 else attend)(q, keys, values, mask)


COMPILED = dict(max_autotune=True, check_indices=False)  # `_call` checks them
# of tokens, positions, block tables and the rows whose logits are wanted, what differs from step to step
SIZES = (("rows",), ("rows",), ("rows", "blocks"), ("wanted",))
# (row, entry) pairs of attention, as measured on two cores with AVX512-bf16; a GPU's would be others:
LONG = 2**14  # of one block: a prompt with more takes less time eagerly
WASTE = 2**13  # of padding: more would take longer than another forward pass


class CompiledPagedTarget(PagedTarget):
    """As PagedTarget, with decoding rows, guesses in a chain and prompts that are not `LONG` compiled.

    max_num_seqs: rows that the step is tuned for; any number runs. sizes: num_blocks and block_size, as PagedTarget.
    problem: why nothing is compiled, None if it is. ValueError for less than one row.
    """

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), *, max_num_seqs: int, **sizes: int):
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}: a step needs at least one row.")
        super().__init__(decoder, tokenizer, eos, **sizes)
        self.max_num_seqs, self.problem = max_num_seqs, say_uncompiled(compiler_problem(self.device))
        name = f"step of many rows ({decoder.config.num_layers} layers, {self.dtype})"
        self.step = CompiledStep(paged_step(decoder), name, decoder, SIZES, frozen=freezable(decoder), **COMPILED)

    def run(self, blocks: Sequence[ModelInput]) -> list[ModelOutput]:
        """Blocks in compiled forward passes, those that need it in an eager one -> the scores of each.

        CacheFullError as PagedTarget has it; IndexError, before anything is written, for tokens and positions beyond
        the decoder's and blocks beyond the memory's.
        """
        fast = [i for i, block in enumerate(blocks) if is_rows(block)] if self._compiled() else []
        rest = [i for i in range(len(blocks)) if i not in fast]
        scores = dict(zip(rest, super().run([blocks[i] for i in rest]), strict=True)) if rest else {}
        for part in passes([blocks[i] for i in fast]):
            scores |= dict(zip([fast[i] for i in part], self._run([blocks[fast[i]] for i in part]), strict=True))
        return [scores[i] for i in range(len(blocks))]

    def _compiled(self) -> bool:
        """Whether the step is compiled, now at the latest: for rows as will come most often, not those that come first.

        Their tokens go to the null block.
        """
        if self.step.seconds is None and not self.problem:
            self._call([([0] * self.max_num_seqs, [0] * self.max_num_seqs, [], self.max_num_seqs)])
            self.problem = say_uncompiled(self.step.problem)
        return not self.problem

    def _run(self, blocks: Sequence[ModelInput]) -> list[ModelOutput]:
        rows, begun, counts = [], [], [block.wanted for block in blocks]
        for block in blocks:
            start, used, new = block.cache.room(len(block.tokens))
            rows.append((block.tokens, [start + offset for offset in block.offsets], used, block.wanted))
            begun += new
        logits = self._call(rows, begun)
        for block in blocks:
            block.cache.advance(len(block.tokens))
        return [ModelOutput(one) for one in logits[: sum(counts)].split(counts)]

    def _call(self, rows: Sequence[tuple[list[int], list[int], list[int], int]], begun: Sequence[int] = ()) -> Tensor:
        """(tokens, positions, blocks, how many of the last are wanted) of each block -> logits (wanted or more, V).

        IndexError for a number that is none: the step itself would read, or overwrite, whatever lies there.
        """
        tokens, positions, tables, wanted = [], [], [], []
        for new, at, table, count in rows:
            tokens += new
            positions += at
            tables += [table] * len(new)
            wanted += range(len(tokens) - count, len(tokens))
        if len(tokens) == 1:  # a compiler takes one row for a constant
            tokens, positions, tables = tokens + [0], positions + [0], tables + [[]]
        wanted = wanted * 2 if len(wanted) == 1 else wanted
        tables = self.memory.padded(tables, at_least=2)
        check("token", tokens, self.vocab_size)
        check("position", positions, self.context)
        check("block", [*chain.from_iterable(tables)], self.memory.null_block + 1)
        self.memory.clear(begun)
        given = [torch.tensor(numbers, device=self.device) for numbers in (tokens, positions, tables, wanted)]
        return self.step(*given, self.memory.keys, self.memory.values)


def check(name: str, numbers: Sequence[int], count: int) -> None:
    """IndexError unless all numbers are those of `count` things."""
    if min(numbers) < 0 or max(numbers) >= count:
        raise IndexError(f"{name}s {min(numbers)} to {max(numbers)} are not all within 0 to {count - 1}")


def is_rows(block: ModelInput) -> bool:
    """Whether a block can run as rows of one token, and is not so long that they would take longer than it."""
    count = len(block.tokens)
    short = count == 1 or count * (block.cache.length() + count) <= LONG
    return short and block.mask is None and not block.after


def passes(blocks: Sequence[ModelInput]) -> Iterator[list[int]]:
    """Numbers of blocks that run together, short texts first: all rows of a forward pass read as many entries."""
    part, rows, pairs = [], 0, 0
    ends = [block.cache.length() + len(block.tokens) for block in blocks]
    for i in sorted(range(len(blocks)), key=ends.__getitem__):
        count = len(blocks[i].tokens)
        if part and rows * ends[i] - pairs > WASTE:
            yield part
            part, rows, pairs = [], 0, 0
        part, rows, pairs = [*part, i], rows + count, pairs + count * ends[i]
    if part:
        yield part


def attend_pages_by_sums(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """As `attend_pages`, its matmuls written as sums over products.

    A compiler turns those into loops that read every block in place, where a matmul would need a copy of them.
    """
    heads, rows, dim = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    q = kept_in_memory(q.transpose(0, 1)).reshape(rows, 1, keys.shape[2], -1, 1, dim)
    queries = q.unbind(3)  # of a group, each with a sum of its own: a loop over several sums reads keys and values once
    scores = torch.stack([(one * keys).sum(-1, dtype=exact) for one in queries], 3) * dim**-0.5
    scores = scores.masked_fill(~visible[:, :, None, None], float("-inf"))  # (rows, n, H_kv, g, P)
    weights = (scores - scores.amax((1, 4), keepdim=True)).exp()
    sums = torch.stack([(one[..., None] * values).sum((1, 3)) for one in weights.unbind(3)], 2)
    sums = sums / weights.sum((1, 4))[..., None]
    return sums.to(q.dtype).reshape(rows, heads, dim).transpose(0, 1)


def paged_step(decoder: Decoder, cache=Pages) -> Callable:
    """One forward of many rows as a function of tensors alone, so that it can be compiled.

    It takes tokens (rows,), positions, tables, keys and values as Pages, and the rows `wanted` (w,) -> logits (w, V).
    cache: what looks keys and values up, made as Pages is.
    """
    decoder = with_attention(decoder, attend_pages_by_sums)

    def step(tokens: Tensor, positions: Tensor, tables: Tensor, wanted: Tensor, keys: list, values: list):
        pages = cache(keys, values, positions, tables)
        segment = Segment(positions, pages, pages.visible())
        return decoder.logits(decoder(tokens, [segment]).last[wanted])

    return step
