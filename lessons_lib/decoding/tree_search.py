"""Which tree to try (lesson 09): the choices most likely to be right, as many as pay for their width.

accuracies[k][i]: the measured chance that the i-th favourite of head k + 1 is right. Heads are taken as independent
(Cai et al. 2024, arXiv 2401.10774, section 2.3.3): a choice is right with the product of its accuracies, and a step
commits one token plus the sum of these products. They are not quite: compare with what is counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, islice
from math import prod

from lessons_lib.decoding.trees import Choice, TreeShape
from lessons_lib.measure.speculation import WidthCurve, width_cost

Accuracies = Sequence[Sequence[float]]


def value(choice: Choice, accuracies: Accuracies) -> float:
    """The chance that every guess along a choice is right, if heads are independent. IndexError for an unknown one."""
    return prod(accuracies[depth][rank] for depth, rank in enumerate(choice))


def expected_tokens(shape: TreeShape, accuracies: Accuracies) -> float:
    """tau predicted: tokens per target forward, the target's own included. IndexError as `value`."""
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
    """The tree of at most so many nodes, the root not counted, with the most expected tokens per forward.

    ValueError for less than 0 nodes.
    """
    return TreeShape.of(choice for choice, _ in islice(by_value(accuracies), nodes))


def speed_by_size(
    accuracies: Accuracies, v: WidthCurve = None, heads_share: float = 0.0, most: int = 64
) -> list[float]:
    """Speed over plain decoding predicted for the best tree of 0, 1, ..., `most` nodes: tokens over the step's cost.

    That is v(1 + n), a forward of so many rows over a one-row one, and heads_share, what guessing takes over the
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
