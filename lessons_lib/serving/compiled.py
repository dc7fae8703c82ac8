"""The paged decode step compiled (lesson 05): every row that feeds one token, in one graph for texts of any length.

The compiler tunes the products of many rows. Attention reads keys and values where they lie, through each row's list
of blocks, so nothing is collected first. Fewer rows are padded up to `slots`, longer texts make the lists longer.
Prompts run eagerly, in a forward of their own: they fill the machine as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lessons_lib.compiling import kept_in_memory
from lessons_lib.decoding.blocks import Block, Scores
from lessons_lib.decoding.targets.compiled import kernels_of
from lessons_lib.decoding.targets.compiled_step import CompiledStep, say_uncompiled
from lessons_lib.decoding.targets.compiler import compiler_problem
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.serving.target import PagedTarget, decodes


class CompiledPagedTarget(PagedTarget):
    """As PagedTarget, with the decoding rows of a step compiled, `slots` of them in one forward.

    sizes: num_blocks and block_size, as PagedTarget. problem: why nothing is compiled, None if it is. ValueError for
    less than one slot.
    """

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), *, slots: int, **sizes: int):
        if slots < 1:
            raise ValueError(f"slots={slots}: a step needs at least one row.")
        super().__init__(decoder, tokenizer, eos, **sizes)
        self.slots, self.problem = slots, say_uncompiled(compiler_problem(self.device))
        name = f"{slots}-row step ({decoder.config.layers} layers, {self.dtype})"
        self.step = CompiledStep(paged_step(decoder), name, frozen=True, tuned=True)

    def run(self, blocks: Sequence[Block]) -> list[Scores]:
        """Rows that decode in compiled forwards, the others in an eager one -> the scores of each.

        CacheFullError as PagedTarget has it.
        """
        fast = [i for i, block in enumerate(blocks) if decodes(block) and not block.after and not self.problem]
        rest = [i for i in range(len(blocks)) if i not in fast]
        scores = dict(zip(rest, super().run([blocks[i] for i in rest]), strict=True)) if rest else {}
        for start in range(0, len(fast), self.slots):
            part = fast[start : start + self.slots]
            scores |= dict(zip(part, self._decode([blocks[i] for i in part]), strict=True))
        return [scores[i] for i in range(len(blocks))]

    def _decode(self, blocks: Sequence[Block]) -> list[Scores]:
        padding, caches = [0] * (self.slots - len(blocks)), [block.cache for block in blocks]
        for cache in caches:
            cache.check(cache.length() + 1)
        new = lambda numbers: torch.tensor(numbers, device=self.device)  # noqa: E731
        tokens = new([block.tokens[0] for block in blocks] + padding)
        positions = new([cache.positions([0])[0] for cache in caches] + padding)
        tables = new(self.memory.padded([cache.used(1) for cache in caches] + [[]] * len(padding), at_least=2))
        torch._dynamo.maybe_mark_dynamic(tables, 1)
        logits = self.step(tokens, positions, tables, self.memory.keys, self.memory.values)
        self.problem = say_uncompiled(self.step.problem)
        for cache in caches:
            cache.advance(1)
        return [Scores(one[None]) for one in logits[: len(blocks)]]


@dataclass
class Pages:
    """The blocks of all sequences as one compiled forward sees them. positions (rows,), tables (rows, n) of blocks.

    keys, values: for each layer (blocks, H_kv, P, d), P tokens a block.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    positions: Tensor
    tables: Tensor

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys, values (H_kv, rows, d), a token of each row -> all of them (rows, n, H_kv, P, d)."""
        size, rows = self.keys[layer].shape[-2], torch.arange(len(self.positions), device=keys.device)
        block, offset = self.tables[rows, self.positions // size], self.positions % size
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            buffer[block, :, offset] = new.transpose(0, 1)
        return self.keys[layer][self.tables], self.values[layer][self.tables]


def attend_pages(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """q (H, rows, d), a query a row; keys, values (rows, n, H_kv, P, d); seen (rows, n, P) bool -> (H, rows, d).

    Sums over products, which a compiler turns into loops that read every block in place. What is not seen is left
    out of both sums, not just given weight 0: another sequence may have left anything there.
    """
    heads, rows, dim = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    q = kept_in_memory(q.transpose(0, 1)).reshape(rows, 1, keys.shape[2], -1, 1, dim)
    seen = seen[:, :, None, None]
    scores = (q * keys[:, :, :, None]).sum(-1, dtype=exact) * dim**-0.5  # (rows, n, H_kv, g, P)
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = (scores - scores.amax((1, 4), keepdim=True)).exp()
    weights = weights / weights.sum((1, 4), keepdim=True)
    parts = (weights[..., None] * values[:, :, :, None]).masked_fill(~seen[..., None], 0)
    return parts.sum((1, 4)).to(q.dtype).reshape(rows, heads, dim).transpose(0, 1)


def paged_step(decoder: Decoder, cache=Pages) -> Callable:
    """One decode forward of many rows as a function of tensors alone, so that it can be compiled.

    It takes tokens (rows,), and positions, tables, keys and values as Pages -> logits (rows, V). cache: what looks keys
    and values up, made as Pages is.
    """
    kernels = replace(kernels_of(decoder, opened=False), attend=attend_pages)

    def step(tokens: Tensor, positions: Tensor, tables: Tensor, keys: list, values: list):
        size = keys[0].shape[-2]
        entries = torch.arange(tables.shape[1] * size, device=tables.device).view(-1, size)
        segment = Segment(positions, cache(keys, values, positions, tables), entries <= positions[:, None, None])
        return decoder.logits(decoder(tokens, [segment], kernels=kernels).last, kernels)

    return step
