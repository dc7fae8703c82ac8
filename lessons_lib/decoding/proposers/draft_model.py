"""Assisted decoding (lesson 06): a small model drafts what a large one verifies in one forward.

Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); trees as in SpecInfer (Miao et al.
2023, arXiv 2305.09781). The draft has a cache of its own. After drafting it holds all guesses but the deepest,
which were never fed; rolled back to what was accepted it lacks one token, or two when every guess was accepted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.decoding.acceptance import Sampling, favourites
from lessons_lib.decoding.blocks import Block, plain_block, tree_mask
from lessons_lib.decoding.proposal import ANCHOR, NO_GUESSES, Proposal
from lessons_lib.decoding.proposers import Observation, Proposer, check_integers
from lessons_lib.decoding.proposers.draft_length import Constant, DraftLength
from lessons_lib.decoding.proposers.drawing import check_drawing, draw
from lessons_lib.decoding.proposers.growing import Growing
from lessons_lib.decoding.proposers.shared_ids import shared_ids
from lessons_lib.decoding.targets import as_target


class DraftModel(Proposer):
    """draft: a Target, LanguageModel or causal LM with the target's tokenizer. One DraftModel serves one row.

    gamma: tokens drafted per step (a tree's depth), or a schedule of draft_length.
    children: guesses below each node, depth by depth, 1 beyond the end: () is a chain, (3, 2) has six branches.
    mode: "point" takes the draft's most probable tokens; "iid" and "without_replacement" draw from its
    distribution q after `sampling`. All are lossless under Greedy and Sampling; drawing pays under Sampling.
    generator: randomness of the draws. Share the one given to `generate`, or seed it differently: equal seeds
    would tie the draws to the numbers that judge them.

    Raises ValueError for impossible settings, TypeError for a draft that cannot decode; at the start of a text,
    ValueError for a target with another tokenizer: their vocabularies are compared, token by token. Where neither side
    has a tokenizer, as with ids alone, there are only sizes to compare.
    """

    def __init__(
        self,
        draft,
        gamma: int | DraftLength = 5,
        mode: str = "point",
        children: Sequence[int] = (),
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
    ):
        check_drawing(mode, sampling)
        for count in children:
            check_integers(children=count)
        if any(count < 1 for count in children):
            raise ValueError(f"children must be at least 1 at every depth, not {tuple(children)}")
        self.draft, self.mode, self.children = as_target(draft), mode, tuple(children)
        self.length = gamma if isinstance(gamma, DraftLength) else Constant(gamma)
        self.sampling, self.generator = sampling or Sampling(), generator
        self.target = None

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start with an empty cache of the draft's. ValueError for a target with other tokens."""
        if target is not self.target:
            self.target, self.known = target, shared_ids(target, self.draft)
        self.cache = self.draft.new_cache(len(prompt))
        self.tree = Growing()
        self.length.reset()

    @torch.no_grad()
    def propose(self, ids: Sequence[int], limit: int) -> Proposal:
        """A tree as deep as `length` says, a draft forward for each level.

        Unsupported for branches that the draft, as a target, cannot read.
        """
        self.committed, self.tree = len(ids), (tree := Growing())
        gamma = min(self.length.next(), limit, self.draft.context - len(ids) + 1)  # the last guess is never fed
        if gamma < 1 or not all(token < self.known for token in ids[self.cache.length() :]):
            return NO_GUESSES  # also where the target wrote an id that no token has: the draft cannot read it
        nodes = self._most_nodes(gamma)
        self.branching = nodes > gamma and self.cache.branches(len(ids) + nodes)
        while tree.depth < gamma and self._has_room(tree):
            logits = self._shared(self.draft.run([self._block(ids, tree)])[0].logits)
            confidence = self._grow(tree, logits)
            if self._all_ended(tree) or not self.length.goes_on(confidence):
                break
        q = {} if self.mode == "point" else tree.q
        return Proposal(tree.tokens, tree.parents, self.mode, q, tree.draws, draft_calls=tree.depth)

    def observe(self, seen: Observation) -> None:
        """Keep the cache entries of accepted guesses; those of the deepest level were never made."""
        tree = self.tree
        if not tree.depth:
            return
        first = self.committed  # entry of node 0
        fed = self.cache.length() - first
        self.cache.keep(first, [first + node for node in seen.path if node < fed])
        if seen.node_logits:
            last = seen.path[-1] if seen.path else ANCHOR
            ended = seen.tokens[-1] in tree.draws.get(last, ())  # the text ends with a guess: accepted, no bonus
            self.length.observe(tree.depth, min(len(seen.tokens), tree.depth), len(seen.path) + ended)

    def _block(self, ids: Sequence[int], tree: Growing) -> Block:
        """What the draft is fed next: the committed tokens that its cache lacks, then one level after another."""
        if not tree.depth:
            return plain_block(ids[self.cache.length() :], self.cache)
        tokens = [tree.tokens[node] for node in tree.level]
        offset = len(ids) - 1 + tree.depth - self.cache.length()
        mask = None
        if len(tree.tokens) > tree.depth:  # it branches: a node sees its ancestors, all in the cache already
            mask = tree_mask(1, tree, None, len(ids) - 1)[-len(tokens) :]
        return Block(tokens, [offset] * len(tokens), mask, self.cache, len(tokens))

    def _grow(self, tree: Growing, logits: Tensor) -> float:
        """Guess below every node of the deepest level, logits (nodes, V) -> the highest q of a new guess."""
        count = self.children[tree.depth] if self.branching and tree.depth < len(self.children) else 1
        q = self.sampling.probabilities(logits)
        drawn = {}
        for node, scores, row in zip(tree.level, logits, q, strict=True):
            if node == ANCHOR or tree.tokens[node] not in self.target.eos:  # nothing follows an end
                drawn[node], tree.q[node] = self._draw(scores, row, count), row
        tree.grow(drawn)
        return max(float(tree.q[node][tokens].max()) for node, tokens in drawn.items())

    def _most_nodes(self, gamma: int) -> int:
        """Nodes of a tree of that depth if no branch ends early."""
        nodes, level = 0, 1
        for count in (*self.children[:gamma], *[1] * (gamma - len(self.children))):
            level *= count
            nodes += level
        return nodes

    def _draw(self, scores: Tensor, q: Tensor, count: int) -> list[int]:
        """Tokens in draw order, as many as there are with q > 0 at most."""
        if self.mode != "point":
            return draw(q, count, self.mode, self.generator)
        if count == 1:
            return favourites(scores[None])  # as Greedy chooses among equals
        return scores.topk(min(count, int(q.count_nonzero()))).indices.tolist()

    def _shared(self, logits: Tensor) -> Tensor:
        """(n, V of the draft) -> (n, V of the target), nothing on ids without a token: q renormalises over the rest.

        The target's own logits stay as they are, padding included: what it alone would write is the standard.
        Favourites need no q, and so no padding.
        """
        known, lacking = logits[:, : self.known], self.target.vocab_size - self.known
        return known if self.mode == "point" or not lacking else pad(known, (0, lacking), value=float("-inf"))

    def _all_ended(self, tree: Growing) -> bool:
        return all(tree.tokens[node] in self.target.eos for node in tree.level)

    def _has_room(self, tree: Growing) -> bool:
        return self.cache.most is None or not tree.depth or self.cache.length() + len(tree.level) <= self.cache.most
