"""Medusa (lesson 09): heads on the target's last hidden state draft a tree of tokens, verified in one forward pass.

The heads are in models/medusa.py, the shape of the tree and the search for it in tree_shape.py.
Source: Cai et al. 2024 (arXiv 2401.10774).
"""

from collections.abc import Iterable, Sequence

import torch

from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.tree_shape import TreeShape, regular
from lessons_lib.models.medusa import MedusaHeads


class Medusa(Proposer):
    """Drafts a tree of Medusa heads' top tokens. They read the last hidden state, so the target must offer "states".

    heads: MedusaHeads trained for the target's model. choices: the tree, a TreeShape or its choices; None is the chain
    of each head's argmax. Lossless under Greedy and Sampling.
    """

    needs, after = frozenset({"states"}), ("final",)

    def __init__(self, heads: MedusaHeads, choices: TreeShape | Iterable[Sequence[int]] | None = None):
        choices = regular(*[1] * heads.count) if choices is None else choices
        self.shape = choices if isinstance(choices, TreeShape) else TreeShape.of(choices)
        if self.shape.depth > heads.count or self.shape.ranks > heads.scored:
            raise ValueError(
                f"the tree is {self.shape.depth} deep and {self.shape.ranks} ranks wide, too much for {heads.count} "
                f"heads over {heads.scored} tokens; cut its choices"
            )
        self.heads = heads

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text without a hidden state. Raises ValueError if heads and target differ in vocabulary size."""
        if target.vocab_size != self.heads.vocab_size:
            raise ValueError(
                f"these heads score {self.heads.vocab_size} tokens, but the target has {target.vocab_size}; "
                "use heads trained for it"
            )
        self.state = None

    @torch.no_grad()
    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Fill the shape with tokens of the heads, as many levels as the budget allows."""
        depth = int(min(tree.max_depth, self.shape.depth))
        if depth < 1 or self.state is None:
            return
        best = self.heads.top_tokens(self.state[None], self.shape.ranks, depth, ids[-1:])
        self.fill(tree, best[0].tolist())

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output: ModelOutput) -> None:
        """Keep the hidden state of the last accepted node (or the root), from which the new root was predicted.

        Raises ValueError if its width is not that of the heads.
        """
        last = path[-1] if path else ROOT
        state = output.states["final"][1 + last]
        if len(state) != self.heads.width:
            raise ValueError(
                f"these heads read states of width {self.heads.width}, but the target's have {len(state)}; use heads "
                "trained for it"
            )
        self.state = state.to(self.heads.lm_head)

    def fill(self, tree: DraftTree, best: Sequence[Sequence[int]]) -> None:
        """Add the shape's nodes to the tree. best[k]: the top tokens of head k + 1, used on level k + 1."""
        nodes = {(): ROOT}  # choice -> node
        for choice in self.shape.choices:  # level by level, so parents come first
            if len(choice) <= len(best) and nodes.get(choice[:-1]) is not None:
                nodes[choice] = tree.add(nodes[choice[:-1]], best[len(choice) - 1][choice[-1]])
