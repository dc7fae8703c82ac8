"""A language model as a table of next-token probabilities (lesson 06), for toy examples."""

from collections.abc import Sequence

import torch

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.decoder import Target


class Tape(Cache):
    """A cache that stores only its length, because the table depends on the last token alone."""

    def __init__(self):
        self.held = 0

    def length(self, layer: int = -1) -> int:
        return self.held

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        self.held = prefix + len(then)


class TableTarget(Target):
    """A bigram model. rows (V, V): row i holds the probabilities of the token after token i, in float64.

    It has no tokenizer and no end token. It runs only chains, because it does not read the mask of a tree. ValueError
    if rows is not square or a row does not sum to 1.
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

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Look up the logits of each input. ValueError for draft trees with branches or side tokens."""
        return [self._run(model_input) for model_input in inputs]

    def _run(self, model_input: ModelInput) -> ModelOutput:
        if model_input.mask is not None:
            raise ValueError("a table reads chains only; propose no branches and no side tokens")
        model_input.cache.held += len(model_input.tokens)
        return ModelOutput(self.logits[model_input.tokens[-model_input.wanted :]])
