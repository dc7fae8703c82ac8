"""The shape of a draft tree (lesson 09): which ranks of which head it holds, and the search for the best shape.

A choice (i, j, ...) names a node by ranks from 0: the i-th most likely token of head 1, then the j-th of head 2, ...
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

from lessons_lib.decoding.draft_tree import ROOT
from lessons_lib.measure.cost import StepCost, WidthCurve

Choice = tuple[int, ...]
Accuracies = Sequence[Sequence[float]]  # [k][i]: probability that the i-th most likely token of head k + 1 is right


@dataclass(frozen=True)
class TreeShape:
    """The shape of a draft tree: its choices, level by level and sorted. Make one with `TreeShape.of`."""

    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, choices: Iterable[Iterable[int]]) -> "TreeShape":
        """A shape from choices in any order. Raises ValueError for an empty or negative choice, or a missing parent."""
        known = {tuple(choice) for choice in choices}
        for choice in known:
            if not choice or min(choice) < 0:
                raise ValueError(f"{choice} is no choice; name at least one rank, counted from 0")
            if choice[:-1] and choice[:-1] not in known:
                raise ValueError(f"the tree has {choice} but not {choice[:-1]}; add every beginning of a choice")
        return cls(tuple(sorted(known, key=lambda choice: (len(choice), choice))))

    @property
    def depths(self) -> list[int]:
        """Depth of every node: 1 for the children of the root."""
        return [len(choice) for choice in self.choices]

    @property
    def depth(self) -> int:
        """Number of levels; 0 without nodes."""
        return max(self.depths, default=0)

    @property
    def ranks(self) -> int:
        """Number of top tokens needed from each head."""
        return 1 + max((choice[-1] for choice in self.choices), default=-1)

    @property
    def parents(self) -> list[int]:
        """Parent of every node: ROOT on the first level."""
        number = {(): ROOT} | {choice: node for node, choice in enumerate(self.choices)}
        return [number[choice[:-1]] for choice in self.choices]

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """{node or ROOT: its children}, without the leaves; parents come before their children."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return found

    @property
    def leaves(self) -> list[int]:
        """Nodes without children."""
        return [node for node in range(len(self.choices)) if node not in self.children]

    def expected_tokens(self, accuracies: Accuracies) -> float:
        """The predicted tau, bonus token included: 1 + the sum over all nodes of the probability to be accepted.

        A node is accepted if all tokens on its path are right; heads are taken to be independent.
        """
        paths = (prod(accuracies[depth][rank] for depth, rank in enumerate(choice)) for choice in self.choices)
        return 1 + sum(paths)


def regular(*widths: int) -> TreeShape:
    """All combinations of the top widths[0] tokens of head 1, widths[1] of head 2, ...: regular(2, 1) has 4 nodes."""
    levels = range(1, len(widths) + 1)
    return TreeShape.of(choice for depth in levels for choice in product(*map(range, widths[:depth])))


def ancestors(shape: TreeShape) -> Tensor:
    """Tree mask (1 + n, 1 + n) bool, root first: row j is True at j and at all its ancestors."""
    seen = torch.eye(1 + len(shape.choices), dtype=torch.bool)
    for node, parent in enumerate(shape.parents, 1):
        seen[node] |= seen[parent + 1]
    return seen


def by_value(accuracies: Accuracies) -> Iterator[tuple[Choice, float]]:
    """All choices with their values, the highest first: the probability that all tokens on the path are right.

    The value of a choice never exceeds that of its parent, so parents come first, and adding nodes greedily gives the
    best tree of every size. Choices of value 0 are left out. The accuracies of a head may be in any order; the authors'
    search, which adds only next siblings, needs them to decrease.
    """
    # A priority queue of nodes whose parent was returned; heapq pops the smallest, so values are negated
    frontier = [(-1.0, ())]
    while frontier:
        worth, choice = heappop(frontier)
        if choice:
            yield choice, -worth
        for rank, accuracy in enumerate(accuracies[len(choice)] if len(choice) < len(accuracies) else ()):
            if accuracy > 0:
                heappush(frontier, (worth * accuracy, (*choice, rank)))


def best_tree(accuracies: Accuracies, nodes: int) -> TreeShape:
    """The tree with the most expected tokens per forward pass among those of at most `nodes` nodes, root excluded."""
    return TreeShape.of(choice for choice, _ in islice(by_value(accuracies), nodes))


def speed_by_size(
    accuracies: Accuracies, v: WidthCurve = None, heads_share: float = 0.0, most: int = 64
) -> list[float]:
    """Predicted speedup over plain decoding of the best tree of 0, 1, ..., `most` nodes.

    speedup(n) = expected tokens / (v(1 + n) + heads_share). v is the width curve. heads_share is the cost of running
    the heads, in units of a one-token target pass. With 0 nodes the heads do not run, and the speedup is 1.
    """
    cost = StepCost(v=v, host=heads_share)
    tokens = accumulate((value for _, value in islice(by_value(accuracies), most)), initial=1.0)
    return [count / cost.step(tokens=1 + nodes) if nodes else 1.0 for nodes, count in enumerate(tokens)]


def best_size(
    accuracies: Accuracies, v: WidthCurve = None, heads_share: float = 0.0, sizes: Iterable[int] | None = None
) -> int:
    """The number of nodes with the highest predicted speedup; among equals the smallest.

    With sizes=None it is chosen from 0 to 64, and is 0 if no tree is faster than plain decoding. sizes: other
    numbers of nodes to choose from, such as the measured or compiled widths minus 1. Sizes above the number of nodes
    of positive value are ignored; if none is left, the result is 0.
    """
    sizes = range(65) if sizes is None else sorted(sizes)
    speeds = speed_by_size(accuracies, v, heads_share, most=max(sizes, default=0))
    known = [nodes for nodes in sizes if nodes < len(speeds)]
    return max(known, key=speeds.__getitem__, default=0)
