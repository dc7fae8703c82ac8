"""Trees of choices (lesson 09): which of the heads' favourites are tried together, and how the tree is laid out.

A choice (i, j, ...) is a path: the i-th favourite of head 1, below it the j-th of head 2, and so on, counted from 0.
A set of choices that holds every beginning of each is a tree. Buffers as in Medusa (Cai et al. 2024, arXiv
2401.10774), where node 0 is the root, the last committed token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from lessons_lib.decoding.proposal import ANCHOR

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
        """Of every node, 1 for the anchor's children."""
        return [len(choice) for choice in self.choices]

    @property
    def depth(self) -> int:
        """The deepest level; 0 without nodes."""
        return max(self.depths, default=0)

    @property
    def ranks(self) -> int:
        """How many favourites of a head are needed."""
        return 1 + max((choice[-1] for choice in self.choices), default=-1)

    @property
    def parents(self) -> list[int]:
        """Of every node, ANCHOR for those of the first level: what a Proposal takes."""
        number = {(): ANCHOR} | {choice: node for node, choice in enumerate(self.choices)}
        return [number[choice[:-1]] for choice in self.choices]

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """node, or ANCHOR -> the nodes below it, for all that have some, parents first."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return found

    @property
    def leaves(self) -> list[int]:
        """Nodes with nothing below them."""
        return [node for node in range(len(self.choices)) if node not in self.children]


def regular(*widths: int) -> TreeShape:
    """Every combination of the widths[0] favourites of head 1, widths[1] of head 2, ...: regular(2, 1) has 4 nodes."""
    levels = range(1, len(widths) + 1)
    return TreeShape.of(choice for depth in levels for choice in product(*map(range, widths[:depth])))


# How many favourites of the next head stand below a choice in the tree that the authors searched for 4 heads of
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
    index (1 + n): where a node's token stands in [root, favourites of head 1, favourites of head 2, ...].
    retrieve (leaves, 1 + depth): nodes from the root to every leaf, the last leaf first, padded with -1.
    A pad is no node: whoever compares tokens along a row must leave pads out (the authors' code does not, and
    accepts one where the model likes token 0 best).
    """

    mask: Tensor
    positions: Tensor
    index: Tensor
    retrieve: Tensor


def buffers(shape: TreeShape, top_k: int = 10) -> TreeBuffers:
    """Lay a tree out; top_k: favourites listed of each head. ValueError if the tree asks for more."""
    if shape.ranks > top_k:
        raise ValueError(f"the tree asks for a head's {shape.ranks} favourites, but top_k is {top_k}; raise it")
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
