"""Lesson 09's widget: the best tree within limits, its mask, what it promises and what its width costs."""

from collections import Counter
from functools import partial

from matplotlib.figure import Figure

from lessons_lib.decoding.proposers.medusa import Accuracies, TreeShape, best_tree, expected_tokens, speed_by_size
from lessons_lib.figures.medusa import plot_tree_and_mask
from lessons_lib.measure.speculation import WidthCurve, width_cost
from lessons_lib.widgets.controls import Slider, show

SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def within(accuracies: Accuracies, favourites: int, heads: int) -> Accuracies:
    """Of the first heads, the accuracies of their first favourites."""
    return [row[:favourites] for row in accuracies[:heads]]


def headline(accuracies: Accuracies, shape: TreeShape, v: WidthCurve = None, heads_share: float = 0.0) -> str:
    """The tree's size, the tokens it promises, its price, and the speed that follows; without v width is free."""
    nodes = len(shape.choices)
    tokens, price = expected_tokens(shape, accuracies), width_cost(v)(1 + nodes)
    speed = speed_by_size(accuracies, v, heads_share, nodes)[-1]
    return (
        f"{nodes} nodes, {shape.depth} deep: {tokens:.2f} tokens a step expected, v({1 + nodes}) = {price:.2f}, "
        f"speed {speed:.2f} of plain"
    )


def draw_medusa(
    accuracies: Accuracies, v: WidthCurve, heads_share: float, nodes: int, favourites: int, heads: int
) -> Figure:
    """Tree and mask under their headline; ValueError for nodes below 0."""
    allowed = within(accuracies, favourites, heads)
    shape = best_tree(allowed, nodes)
    figure = plot_tree_and_mask(shape)
    figure.suptitle(headline(allowed, shape, v, heads_share), fontsize=11)
    return figure


def describe_medusa(
    accuracies: Accuracies, v: WidthCurve, heads_share: float, nodes: int, favourites: int, heads: int
) -> str:
    """The figure in words; ValueError for nodes below 0."""
    allowed = within(accuracies, favourites, heads)
    shape = best_tree(allowed, nodes)
    levels = ", ".join(f"{count} of head {depth}" for depth, count in sorted(Counter(shape.depths).items()))
    return (
        f"The best tree of at most {nodes} nodes from the {favourites} favourites of {heads} heads, beside its mask: "
        f"{headline(allowed, shape, v, heads_share)}. Guesses: {levels or 'none'}. Each node sees itself and the "
        "nodes on its way from the anchor."
    )


def show_medusa(accuracies: Accuracies, v: WidthCurve = None, heads_share: float = 0.0, nodes: int = 10) -> None:
    """Sliders for nodes, favourites per head and heads over the tree that the greedy search finds within them.

    accuracies: as in decoding.tree_search. v: the machine's measured width curve, {w: v}. heads_share: time of the
    heads in a step over a one-row forward, taken for all numbers of heads alike. nodes: where their slider
    starts; rounded down to what there is. ValueError for less than 0 nodes, and without heads.
    """
    ranks, count = range(1, 1 + max(map(len, accuracies))), len(accuracies)
    controls = {
        "nodes": Slider("nodes", SIZES, max(size for size in SIZES if size <= nodes)),
        "favourites": Slider("favourites per head", ranks, min(4, ranks[-1])),
        "heads": Slider("heads", range(1, 1 + count), count),
    }
    given = accuracies, v, heads_share
    show(controls, partial(draw_medusa, *given), partial(describe_medusa, *given))
