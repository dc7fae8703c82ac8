"""A language model as a table (lesson 06): what follows each token, for toys whose every probability is known."""

from collections.abc import Sequence

import torch

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.base import Target


class Tape(Cache):
    """A cache of nothing but a length: a table looks at the last token alone."""

    def __init__(self):
        self.held = 0

    def length(self, layer: int = -1) -> int:
        return self.held

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        self.held = prefix + len(then)


class TableTarget(Target):
    """rows (V, V): row i holds the probabilities of what follows token i, float64. No tokenizer, no end token.

    Chains only: a branching tree would need to be told which token is whose parent. ValueError for rows that are
    not square or do not sum to 1.
    """

    context, eos = 10**6, ()

    def __init__(self, rows: Sequence[Sequence[float]]):
        table = torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
        if table.shape != (len(table), len(table)) or not torch.allclose(
            table.sum(-1), torch.ones(len(table)).double()
        ):
            raise ValueError("a table needs one row per token, each with a probability per token that sum to 1")
        self.logits, self.vocab_size = table.log(), len(table)

    def new_cache(self, tokens: int) -> Tape:
        return Tape()

    def run(self, blocks: Sequence[ModelInput]) -> list[ModelOutput]:
        """ValueError for a block with branches or side tokens, IndexError for ids beyond V."""
        return [self._run(block) for block in blocks]

    def _run(self, block: ModelInput) -> ModelOutput:
        if block.mask is not None:
            raise ValueError("a table reads chains only; propose no branches and no side tokens")
        block.cache.held += len(block.tokens)
        return ModelOutput(self.logits[block.tokens[-block.wanted :]])
