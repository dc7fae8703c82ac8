"""Medusa (lesson 09): heads on the target's own final state guess several tokens ahead; a tree of them is verified.

Cai et al. 2024 (arXiv 2401.10774). The state that chose the last committed token is at hand after every step, so that
guessing costs a few small products and no forward. Head k guesses the k-th token behind the anchor, knowing at most
the anchor, not the guesses before its own: hence a tree of combinations.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lessons_lib.decoding.acceptance import Sampling
from lessons_lib.decoding.proposal import ANCHOR, NO_GUESSES, Proposal
from lessons_lib.decoding.proposers import Observation, Proposer
from lessons_lib.decoding.proposers.drawing import check_drawing, draw
from lessons_lib.decoding.trees import TreeShape, regular
from lessons_lib.models.medusa import MedusaHeads


class Medusa(Proposer):
    """heads: MedusaHeads of the target's model. choices: the tree, a TreeShape or what makes one (None: the chain of
    favourites).

    mode: "point" takes the heads' most probable tokens, choice (i, j) being the i-th of head 1, then the j-th of
    head 2; "iid" and "without_replacement" draw as many children for each node from the head's distribution q after
    `sampling`. All are lossless under Greedy and Sampling. generator: randomness of the draws; share the one given to
    `generate`, or seed it differently.

    Needs a target that offers states. ValueError for impossible settings and a target of another model.
    """

    needs, after = frozenset({"states"}), ("final",)

    def __init__(
        self,
        heads: MedusaHeads,
        choices: TreeShape | Iterable[Sequence[int]] | None = None,
        mode: str = "point",
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
    ):
        check_drawing(mode, sampling)
        choices = regular(*[1] * heads.count) if choices is None else choices
        self.shape = choices if isinstance(choices, TreeShape) else TreeShape.of(choices)
        if self.shape.depth > heads.count or self.shape.ranks > heads.scored:
            raise ValueError(
                f"the tree is {self.shape.depth} deep and {self.shape.ranks} ranks wide, too much for {heads.count} "
                f"heads over {heads.scored} tokens; cut its choices"
            )
        self.heads, self.mode, self.sampling, self.generator = heads, mode, sampling or Sampling(), generator

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Forget the last text's state. ValueError for a target with another number of tokens."""
        if target.vocab_size != self.heads.vocab_size:
            raise ValueError(
                f"these heads guess among {self.heads.vocab_size} tokens, but the target has {target.vocab_size}; "
                "use heads trained for it"
            )
        self.state = None

    @torch.no_grad()
    def propose(self, ids: Sequence[int], limit: int) -> Proposal:
        """The tree, its levels beyond `limit` left out."""
        depth = min(limit, self.shape.depth)
        if depth < 1 or self.state is None:
            return NO_GUESSES
        if self.mode == "point":
            return self.tree_of(self.heads.favourites(self.state[None], self.shape.ranks, depth, ids[-1:])[0].tolist())
        return self._drawn(self.sampling.probabilities(self.heads(self.state[None], depth, ids[-1:])[0]))

    def observe(self, seen: Observation) -> None:
        """Keep the state of the last accepted node, which chose the new anchor. ValueError for one of another width."""
        state = seen.states["final"][0]
        if len(state) != self.heads.width:
            raise ValueError(
                f"these heads read states of width {self.heads.width}, but the target's have {len(state)}; use heads "
                "trained for it"
            )
        self.state = state.to(self.heads.lm_head)

    def tree_of(self, best: Sequence[Sequence[int]]) -> Proposal:
        """best: the favourites of head 1, of head 2, ... -> the tree of them, as many levels deep.

        IndexError for fewer favourites of a head than the shape asks for.
        """
        choices = [choice for choice in self.shape.choices if len(choice) <= len(best)]  # shallow ones come first
        tokens = [best[len(choice) - 1][choice[-1]] for choice in choices]
        return Proposal(tokens, self.shape.parents[: len(tokens)])

    def _drawn(self, q: Tensor) -> Proposal:
        """q (depth, V) -> a tree of draws, smaller where q has not as many tokens as a node shall have children."""
        tokens, parents, rows, number = [], [], {}, {ANCHOR: ANCHOR}  # number: node of the shape -> node of the tree
        for node, children in self.shape.children.items():
            level = self.shape.depths[node] if node != ANCHOR else 0
            if node not in number or level == len(q):
                continue
            rows[number[node]] = q[level]
            for child, token in zip(children, draw(q[level], len(children), self.mode, self.generator), strict=False):
                number[child] = len(tokens)
                tokens.append(token)
                parents.append(number[node])
        return Proposal(tokens, parents, self.mode, rows)
