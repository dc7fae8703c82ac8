"""Our decoder on paged caches (lesson 05): rows that feed one token each attend together, prompts on their own.

Products run over all tokens anyway; attention is what many rows would otherwise do one by one, in a dozen small calls
for each row of each layer.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lessons_lib.caches.paged import PagedCache, PagedRows
from lessons_lib.caches.paged_memory import PagedMemory
from lessons_lib.decoding.blocks import Block, Scores
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment, States
from lessons_lib.models.kernels import attend


class PagedTarget(DecoderTarget):
    """As DecoderTarget, on one memory of `num_blocks` blocks of `block_size` tokens; caches come without any.

    tokenizer, eos: as DecoderTarget takes them. CacheFullError where a row's blocks have no room for its new tokens.
    """

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), *, num_blocks: int, block_size: int):
        super().__init__(decoder, tokenizer, eos)
        c, self.sizes = decoder.config, dict(num_blocks=num_blocks, block_size=block_size)
        shape = c.layers, c.kv_heads, c.head_dim, self.dtype, self.device
        self.memory = PagedMemory(*shape, blocks=num_blocks, block_size=block_size)

    def new_cache(self, tokens: int) -> PagedCache:
        """A cache without blocks: whoever has a block pool gives it some."""
        return PagedCache(self.memory, [])

    def run(self, blocks: Sequence[Block]) -> list[Scores]:
        """One packed forward for all blocks, those of one token first -> the scores of each, logits (wanted, V)."""
        order = sorted(range(len(blocks)), key=lambda i: not decodes(blocks[i]))
        scores = dict(zip(order, super().run([blocks[i] for i in order]), strict=True))
        return [scores[i] for i in range(len(blocks))]

    def forward(self, tokens: Tensor, blocks: Sequence[Block], layers: Sequence[int]) -> States:
        """tokens (T,) of all blocks -> their states as DecoderTarget has them; the rows that decode are one segment."""
        rows = [block.cache for block in blocks if decodes(block)]
        together = [self.rows(PagedRows(rows))] if rows else []
        segments = together + [self.segment(block) for block in blocks[len(rows) :]]
        return self.decoder(tokens, segments, after=layers, kernels=replace(self.decoder.kernels, attend=attend_either))

    def rows(self, cache: PagedRows) -> Segment:
        """Many rows of one token as the decoder reads them: one segment."""
        return Segment(torch.tensor(cache.positions, device=self.device), cache, cache.bias(self.dtype))


def decodes(block: Block) -> bool:
    """Whether a row feeds one token that sees all before it."""
    return len(block.tokens) == 1 and block.mask is None


def attend_rows(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """q (H, rows, d), a query a row; keys, values (rows, H_kv, S, d); bias (rows · H_kv, 1, S) -> (H, rows, d).

    Two products over all rows at once. In float32 on a CPU that takes less time than scaled_dot_product_attention,
    whose kernel is made for many queries a row: a third to nine tenths of it, by machine and number of rows. In bf16
    it takes more: training/batched.py.
    """
    heads, rows, dim = q.shape
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)
    folded = q.transpose(0, 1).reshape(len(keys), -1, dim)
    scores = torch.baddbmm(bias, folded, keys.transpose(1, 2), alpha=dim**-0.5)
    return torch.bmm(scores.softmax(-1), values).view(rows, heads, dim).transpose(0, 1)


def attend_either(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`attend_rows` where keys are (rows, H_kv, S, d), many rows together; `attend` for one row's, (H_kv, S, d)."""
    return (attend_rows if keys.dim() == 4 else attend)(q, keys, values, mask)
