"""Medusa (lesson 09): heads on the target's last hidden state draft a tree of tokens, verified in one forward pass.

Here stand tree shapes, the search for the best one, and the proposer; the heads are in models/medusa.py.
Source: Cai et al. 2024 (arXiv 2401.10774).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate, islice, product
from math import prod

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sampling import Sampling, check_sampling, sample_children
from lessons_lib.measure.cost import WidthCurve, width_cost
from lessons_lib.models.medusa import MedusaHeads

Choice = tuple[int, ...]
PAD = -1


@dataclass(frozen=True)
class TreeShape:
    """Choices in order: level by level, from left to right. Make one with `TreeShape.of`."""

    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, choices: Iterable[Iterable[int]]) -> "TreeShape":
        """Sort and check. ValueError for an empty or negative choice, or one whose beginning is missing."""
        known = {tuple(choice) for choice in choices}
        for choice in known:
            if not choice or min(choice) < 0:
                raise ValueError(f"{choice} is no choice; name at least one rank, counted from 0")
            if choice[:-1] and choice[:-1] not in known:
                raise ValueError(f"the tree has {choice} but not {choice[:-1]}; add every beginning of a choice")
        return cls(tuple(sorted(known, key=lambda choice: (len(choice), choice))))

    @property
    def depths(self) -> list[int]:
        """Of every node, 1 for the root's children."""
        return [len(choice) for choice in self.choices]

    @property
    def depth(self) -> int:
        """The deepest level; 0 without nodes."""
        return max(self.depths, default=0)

    @property
    def ranks(self) -> int:
        """How many most likely tokens of a head are needed."""
        return 1 + max((choice[-1] for choice in self.choices), default=-1)

    @property
    def parents(self) -> list[int]:
        """Of every node, ROOT for those of the first level."""
        number = {(): ROOT} | {choice: node for node, choice in enumerate(self.choices)}
        return [number[choice[:-1]] for choice in self.choices]

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """node, or ROOT -> the nodes below it, for all that have some, parents first."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return found

    @property
    def leaves(self) -> list[int]:
        """Nodes with nothing below them."""
        return [node for node in range(len(self.choices)) if node not in self.children]


def regular(*widths: int) -> TreeShape:
    """Every combination of the top widths[0] tokens of head 1, widths[1] of head 2, ...: regular(2, 1) has 4 nodes."""
    levels = range(1, len(widths) + 1)
    return TreeShape.of(choice for depth in levels for choice in product(*map(range, widths[:depth])))


# How many most likely tokens of the next head stand below a choice in the tree that the authors searched for 4 heads of
# Vicuna-7B, the default of their code (Cai et al. 2024, github.com/FasterDecoding/Medusa, medusa_choices.py)
PUBLISHED = {
    (): 10,
    (0,): 10, (1,): 7, (2,): 3, (3,): 2, (4,): 1, (5,): 1, (6,): 1, (7,): 1, (8,): 1, (9,): 1,
    (0, 0): 10, (0, 1): 3, (0, 2): 2, (0, 3): 1, (0, 4): 1, (0, 5): 1, (0, 6): 1, (0, 7): 1, (1, 0): 2, (2, 0): 1,
    (0, 0, 0): 2,
}  # fmt: skip


def published_tree() -> TreeShape:
    """Medusa's tree for 4 heads: 63 nodes, 64 with the root, of which 10, 28, 23 and 2 stand on its four levels."""
    return TreeShape.of((*above, rank) for above, count in PUBLISHED.items() for rank in range(count))


@dataclass(frozen=True)
class TreeBuffers:
    """The published layout of a tree of n nodes, the root in front of them.

    mask (1 + n, 1 + n) bool: row j may attend to itself and its ancestors. positions (1 + n): tokens behind the root.
    index (1 + n): where a node's token stands in [root, top tokens of head 1, top tokens of head 2, ...].
    retrieve (leaves, 1 + depth): nodes from the root to every leaf, the last leaf first, padded with -1.
    A pad is no node: whoever compares tokens along a row must leave pads out (the authors' code does not, and
    accepts one where the model likes token 0 best).
    """

    mask: Tensor
    positions: Tensor
    index: Tensor
    retrieve: Tensor


def buffers(shape: TreeShape, top_k: int = 10) -> TreeBuffers:
    """Lay a tree out; top_k: most likely tokens listed of each head. ValueError if the tree asks for more."""
    if shape.ranks > top_k:
        raise ValueError(f"the tree asks for a head's {shape.ranks} most likely tokens, but top_k is {top_k}; raise it")
    index = [1 + top_k * (len(choice) - 1) + choice[-1] for choice in shape.choices]
    return TreeBuffers(ancestors(shape), torch.tensor([0, *shape.depths]), torch.tensor([0, *index]), leaf_paths(shape))


def ancestors(shape: TreeShape) -> Tensor:
    """(1 + n, 1 + n) bool: row j is True at j and at every node above it, the root included."""
    seen = torch.eye(1 + len(shape.choices), dtype=torch.bool)
    for node, parent in enumerate(shape.parents, 1):
        seen[node] |= seen[parent + 1]
    return seen


def leaf_paths(shape: TreeShape) -> Tensor:
    """(leaves, 1 + depth), 1 leaf at least: nodes from the root down to each, the last leaf first, padded with PAD."""
    seen = ancestors(shape)
    paths = [seen[leaf + 1].nonzero().flatten().tolist() for leaf in reversed(shape.leaves)] or [[0]]
    return torch.tensor([path + [PAD] * (1 + shape.depth - len(path)) for path in paths])


Accuracies = Sequence[Sequence[float]]


def value(choice: Choice, accuracies: Accuracies) -> float:
    """The chance that every guess along a choice is right, if heads are independent. IndexError for an unknown one."""
    return prod(accuracies[depth][rank] for depth, rank in enumerate(choice))


def expected_tokens(shape: TreeShape, accuracies: Accuracies) -> float:
    """tau predicted: tokens per target forward pass, the target's own included. IndexError as `value`."""
    return 1 + sum(value(choice, accuracies) for choice in shape.choices)


def by_value(accuracies: Accuracies) -> Iterator[tuple[Choice, float]]:
    """All choices of some worth with their values, the best first; each stands behind its beginning.

    A choice is worth no more than its beginning. So greedy growth finds the best tree of any size, in whatever order
    a head's accuracies stand; the authors' search, which adds next siblings only, needs them to fall.
    """
    frontier = [(-1.0, ())]
    while frontier:
        worth, choice = heappop(frontier)
        if choice:
            yield choice, -worth
        for rank, accuracy in enumerate(accuracies[len(choice)] if len(choice) < len(accuracies) else ()):
            if accuracy > 0:
                heappush(frontier, (worth * accuracy, (*choice, rank)))


def best_tree(accuracies: Accuracies, nodes: int) -> TreeShape:
    """The tree of at most so many nodes, the root not counted, with the most expected tokens per forward pass.

    ValueError for less than 0 nodes.
    """
    return TreeShape.of(choice for choice, _ in islice(by_value(accuracies), nodes))


def speed_by_size(
    accuracies: Accuracies, v: WidthCurve = None, heads_share: float = 0.0, most: int = 64
) -> list[float]:
    """Speed over plain decoding predicted for the best tree of 0, 1, ..., `most` nodes: tokens over the step's cost.

    That is v(1 + n), a forward pass of so many rows over a one-row one, and heads_share, what guessing takes over the
    same; without nodes the heads are not asked, and the speed is 1. ValueError for `most` below 0, and for a curve
    without widths.
    """
    v = width_cost(v)
    tokens = accumulate((value for _, value in islice(by_value(accuracies), most)), initial=1.0)
    return [count / (v(1 + nodes) + heads_share) if nodes else 1.0 for nodes, count in enumerate(tokens)]


def best_size(
    accuracies: Accuracies,
    v: WidthCurve = None,
    heads_share: float = 0.0,
    most: int = 64,
    sizes: Iterable[int] | None = None,
) -> int:
    """How many nodes make the fastest tree; of equals the fewest, 0 where plain decoding is not beaten.

    sizes: those to choose from (None: 0 to `most`), such as the widths that were measured or compiled less one;
    sizes of more nodes than have any worth are left out, and 0 is the answer if none is left. ValueError as
    `speed_by_size`.
    """
    speeds = speed_by_size(accuracies, v, heads_share, most)
    known = [nodes for nodes in sorted(range(len(speeds)) if sizes is None else sizes) if nodes < len(speeds)]
    return max(known, key=speeds.__getitem__, default=0)


class Medusa(Proposer):
    """heads: MedusaHeads of the target's model. choices: the tree, a TreeShape or what makes one (None: the chain of
    most likely tokens).

    mode: "greedy" takes the heads' most probable tokens, choice (i, j) being the i-th of head 1, then the j-th of
    head 2; "iid" and "without_replacement" sample as many children for each node from the head's distribution q after
    `sampling`. All are lossless under Greedy and Sampling. generator: randomness of the draft; share the one given to
    `generate`, or seed it differently.

    Needs a target that offers states. ValueError for impossible settings and a target of another model.
    """

    needs, after = frozenset({"states"}), ("final",)

    def __init__(
        self,
        heads: MedusaHeads,
        choices: TreeShape | Iterable[Sequence[int]] | None = None,
        mode: str = "greedy",
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
    ):
        check_sampling(mode, sampling)
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
    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Fill the shape with the heads' tokens, as many levels as the tree takes."""
        depth = int(min(tree.max_depth, self.shape.depth))
        if depth < 1 or self.state is None:
            return
        if self.mode == "greedy":
            best = self.heads.top_tokens(self.state[None], self.shape.ranks, depth, ids[-1:])
            self.fill(tree, best[0].tolist())
        else:
            self.sample(tree, self.sampling.probabilities(self.heads(self.state[None], depth, ids[-1:])[0]))

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], scores: ModelOutput) -> None:
        """Keep the state of the last accepted node, which chose the new root. ValueError for one of another width."""
        last = path[-1] if path else ROOT
        state = scores.states["final"][1 + last]
        if len(state) != self.heads.width:
            raise ValueError(
                f"these heads read states of width {self.heads.width}, but the target's have {len(state)}; use heads "
                "trained for it"
            )
        self.state = state.to(self.heads.lm_head)

    def fill(self, tree: DraftTree, best: Sequence[Sequence[int]]) -> None:
        """Add the shape's nodes to the tree. best: the most probable tokens of head 1, of head 2, ..., a level each."""
        nodes = {(): ROOT}  # choice -> node
        for choice in self.shape.choices:  # shallow ones come first
            if len(choice) <= len(best) and nodes.get(choice[:-1]) is not None:
                nodes[choice] = tree.add(nodes[choice[:-1]], best[len(choice) - 1][choice[-1]])

    def sample(self, tree: DraftTree, q: Tensor) -> None:
        """Sample the shape's children from q (depth, V), a level each; fewer where q has not as many tokens."""
        nodes = {ROOT: ROOT}  # node of the shape -> node of the tree
        for parent, children in self.shape.children.items():
            level = 0 if parent == ROOT else self.shape.depths[parent]
            if parent in nodes and level < len(q):
                made = sample_children(tree, nodes[parent], q[level], len(children), self.mode, self.generator)
                nodes |= zip(children, made, strict=False)
