"""What heads and their tree are worth (lesson 09), counted by replay along the target's recorded greedy texts.

Greedy output does not depend on the heads, and what they read was kept with every text: their guesses at any step of
any decoding are known without a forward of the model, and known once for all trees.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch

from lessons_lib.decoding.draft_tree import Proposal
from lessons_lib.decoding.generate import Step, tokens_per_forward
from lessons_lib.decoding.proposers import Observation
from lessons_lib.decoding.proposers.medusa import Medusa, TreeShape
from lessons_lib.decoding.replay import Recording, replay
from lessons_lib.models.medusa import MedusaHeads
from lessons_lib.training.batched import Text
from lessons_lib.training.evaluate import judged, mean
from lessons_lib.training.heads_loss import ROWS
from lessons_lib.training.held_out import CATEGORIES

Favourites = list[list[list[int]]]


class Recorded(Medusa):
    """Medusa whose heads were asked at every position of a text beforehand; favourites: as `favourites` gives them.

    ValueError for a tree that the heads cannot fill.
    """

    def __init__(self, heads: MedusaHeads, favourites: Favourites, tree: TreeShape):
        super().__init__(heads, tree)
        self.favourites = favourites

    def reset(self, target, prompt: Sequence[int]) -> None:
        """A recording has no vocabulary to compare."""

    def propose(self, ids: Sequence[int], limit: int) -> Proposal:
        """The tree, read at the row that chose the last token: row i chose token i + 1."""
        return self.tree_of(self.favourites[len(ids) - 2][: min(limit, self.shape.depth)])

    def observe(self, seen: Observation) -> None:
        """A recording has no states to show."""


@torch.no_grad()
def favourites(heads: MedusaHeads, text: Text, ranks: int) -> Favourites:
    """Every head's `ranks` most probable tokens at every row of a text's states: (T - 1, K, ranks) as lists.

    RuntimeError for more ranks than tokens that the heads score.
    """
    parts = zip(text.hidden.to(heads.lm_head).split(ROWS), torch.tensor(text.ids[1:]).split(ROWS), strict=True)
    return [row for part, chosen in parts for row in heads.favourites(part, ranks, chosen=chosen).tolist()]


def trace_of(heads: MedusaHeads, text: Text, best: Favourites, tree: TreeShape) -> list[Step]:
    """The steps that decoding a greedy text with this tree takes, prefill first; best: the text's `favourites`.

    ValueError as Recorded, and for a text without an answer.
    """
    recording = Recording(text.ids[: text.prompt_length], text.ids[text.prompt_length :])
    return replay(recording, Recorded(heads, best, tree))


def evaluate_heads(heads: MedusaHeads, texts: Sequence[Text], trees: Sequence[TreeShape]) -> list[dict]:
    """Texts -> tokens per forward by kind, for each tree. macro: the mean over the kinds in CATEGORIES that are there.

    Only greedy texts of two new tokens or more count. ValueError for a tree that the heads cannot fill.
    """
    traces = [defaultdict(list) for _ in trees]
    ranks = max((tree.ranks for tree in trees), default=0)
    for kind, text in judged(texts):
        best = favourites(heads, text, ranks)
        for tree, of in zip(trees, traces, strict=True):
            of[kind] += trace_of(heads, text, best, tree)
    return [row(tree, of) for tree, of in zip(trees, traces, strict=True)]


def row(tree: TreeShape, traces: dict[str, list[Step]]) -> dict:
    """One tree's figures: nodes, tokens per forward by kind, and their mean. traces: kind -> steps."""
    kinds = {kind: round(tokens_per_forward(trace), 4) for kind, trace in sorted(traces.items())}
    macro = mean([kinds[kind] for kind in CATEGORIES.values() if kind in kinds])
    return {"nodes": len(tree.choices), "macro": macro, "kinds": kinds}
