"""The candidate tree and its mask, heads in training, and which tree is worth its width (lesson 09)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lessons_lib.decoding.draft_tree import ANCHOR
from lessons_lib.decoding.proposers.medusa import TreeShape, ancestors
from lessons_lib.figures.masks import name_tokens, plot_mask
from lessons_lib.figures.rows import as_dicts, plot_spread
from lessons_lib.figures.style import ABOVE, COLORS, CYCLE, INK, MARKERS, PAPER, SMALL, WIDTH, axes, panels, tint

KINDS = {"anchor": INK, "guess": COLORS["medusa"]}  # numbered 1, 2
LABELLED = 40  # nodes up to which a tree's are labelled
STACKED = (WIDTH, 6.4)  # inches, of two panels


def layout(shape: TreeShape) -> dict[int, tuple[float, float]]:
    """node, ANCHOR among them -> (depth, row): each leaf has a row, other nodes stand midway between their children."""
    rows = {ANCHOR: 0.0}
    rows |= {leaf: row for row, leaf in enumerate(sorted(shape.leaves, key=shape.choices.__getitem__))}
    for node, below in reversed(shape.children.items()):  # children first
        rows[node] = mean([rows[below[0]], rows[below[-1]]])
    depths = dict(enumerate(shape.depths)) | {ANCHOR: 0}
    return {node: (depths[node], rows[node]) for node in [ANCHOR, *range(len(shape.choices))]}


def plot_tree(shape: TreeShape, ax: Axes | None = None) -> Axes:
    """The tree from left to right: the anchor, the favourites of head 1, below each of them those of head 2, ..."""
    at, shades = layout(shape), [list(KINDS.values())[kind - 1] for kind in kinds(shape)]
    ax = ax or axes((6.4, tall(shape)))
    edges = [(at[parent], at[node]) for node, parent in enumerate(shape.parents)]
    ax.add_collection(LineCollection(edges, colors=shades[1:], linewidths=1.2, zorder=1))
    ax.scatter(*zip(*at.values(), strict=True), 28, shades, zorder=2)
    if len(shape.choices) <= LABELLED:
        for place, name, shade in zip(at.values(), names(shape), shades, strict=True):
            box = {"boxstyle": "round,pad=0.25", "facecolor": tint(shade), "edgecolor": shade}
            ax.text(*place, name, ha="center", va="center", fontsize=SMALL, color=INK, bbox=box)
    _by_depth(ax, shape)
    return ax


def plot_tree_and_mask(shape: TreeShape) -> Figure:
    """plot_tree, and under it who of anchor and nodes may look at whom; rows say how far behind the anchor."""
    high = tall(shape)
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(WIDTH, high + 5.8), height_ratios=(high, 5.8), layout="compressed", facecolor=PAPER
    )
    plot_tree(shape, ax=upper)
    plot_mask(ancestors(shape), kinds(shape), list(KINDS.values()), lower)
    columns = names(shape)
    name_tokens(lower, columns, [f"{name}  +{depth}" for name, depth in zip(columns, [0, *shape.depths], strict=True)])
    lower.set(xlabel="may look at", ylabel="token, and where it stands")
    shown = [Patch(color=shade, label=name) for name, shade in KINDS.items()]
    lower.legend(handles=shown, loc="upper right", fontsize=SMALL)
    return figure


def kinds(shape: TreeShape) -> list[int]:
    """Of the anchor and every node, the number of its kind in KINDS."""
    return [1, *[2] * len(shape.choices)]


def names(shape: TreeShape) -> list[str]:
    """What is written on the anchor and on every node: its ranks."""
    return ["anchor", *(",".join(map(str, choice)) for choice in shape.choices)]


def tall(shape: TreeShape) -> float:
    """Inches that a tree needs: a line of text for each leaf, if there is text."""
    return max(2.4, 0.8 + 0.22 * len(shape.leaves)) if len(shape.choices) <= LABELLED else 5.2


def _by_depth(ax: Axes, shape: TreeShape) -> None:
    """A column for each head, the first row on top, and no frame."""
    ax.set_xticks(range(shape.depth + 1), ["anchor", *(f"head {k}" for k in range(1, shape.depth + 1))])
    ax.set_yticks([])
    ax.set(xlim=(-0.4, shape.depth + 0.4), ylim=(max(1, len(shape.leaves)) - 0.5, -0.5))
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def plot_heads_training(curve: Iterable[Any]) -> Figure:
    """Loss against step, of batches and of held-back texts; and how often each head is right on the latter.

    curve: rows of `HeadsRun`: `step`, `loss` (not before the first step), and some with `held_loss` (both in nats,
    heads weighted), `top1` and `top5`, a share for each head. ValueError without rows.
    """
    rows, (upper, lower), grey = as_dicts(curve), panels(2, STACKED, 1), tint(INK, 0.4)
    looks = [row for row in rows if "held_loss" in row]
    seen = [row["step"] for row in looks]
    trained = [row for row in rows if "loss" in row]
    upper.plot([row["step"] for row in trained], [row["loss"] for row in trained], color=grey, label="training batch")
    upper.plot(seen, [row["held_loss"] for row in looks], "o-", color=COLORS["medusa"], label="held-back texts")
    upper.set(xlabel="training step", ylabel="loss [nats, heads weighted]", ylim=(0, None))
    upper.legend()
    for key, style in (("top1", "-"), ("top5", "--")):
        for k, shares in enumerate(zip(*(row[key] for row in looks), strict=True)):
            label = f"head {k + 1}" if key == "top1" else None
            lower.plot(seen, shares, style, color=_shade(k), label=label)
    lower.set(xlabel="training step", ylabel="guesses that are right", ylim=(0, 1))
    if looks:
        lower.legend(title="solid: the favourite; dashed: one of five", ncols=4, **ABOVE)
    return lower.figure


def plot_head_accuracies(accuracies: Sequence[Sequence[float]]) -> Axes:
    """How often the right token is among a head's first 1, 2, ... favourites, a line per head.

    accuracies[k][i]: share of positions at which the i-th favourite of head k + 1 is right. ValueError for no heads.
    """
    ax = axes()
    for k, row in enumerate(accuracies):
        found = list(accumulate(row))
        ax.plot(range(1, len(row) + 1), found, f"{MARKERS[k]}-", color=_shade(k), label=f"head {k + 1}")
    ax.set_xticks(range(1, max(map(len, accuracies)) + 1))
    ax.set(xlabel="favourites of the head", ylabel="right one among them", ylim=(0, 1))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def plot_tree_sizes(rows: Iterable[Any]) -> Figure:
    """Tokens per forward and speed over plain against the tree's size: predicted (dashed), counted, and timed.

    rows: `nodes`; `expected` and `speed_predicted`, predicted from the heads' accuracies; and where known `counted` and
    `speed_counted`, and `samples` (repeated measurements of the speed). Stars mark the fastest sizes. ValueError
    without rows.
    """
    rows, (upper, lower) = sorted(as_dicts(rows), key=lambda row: row["nodes"]), panels(2, STACKED, 1)
    _sizes(upper, rows, "expected", "counted")
    upper.set(xlabel="nodes of the tree", ylabel="tokens per forward", ylim=(0, None))
    _sizes(lower, rows, "speed_predicted", "speed_counted", best=True)
    if timed := [row for row in rows if "samples" in row]:
        plot_spread(lower, [row["nodes"] for row in timed], [row["samples"] for row in timed])
    lower.axhline(1, linestyle=":", color=COLORS["limit"])
    lower.set(xlabel="nodes of the tree", ylabel="speed [times plain]", ylim=(0, None))
    upper.legend(loc="lower right")
    lower.legend(loc="lower left")  # under the lines, which stay far above 0
    return lower.figure


def _sizes(ax: Axes, rows: Sequence[Mapping[str, Any]], predicted: str, counted: str, best: bool = False) -> None:
    """Both lines against the nodes; `best`: a star where each is highest."""
    for key, style, shade in ((predicted, "--", COLORS["predicted"]), (counted, "-", COLORS["medusa"])):
        points = [(row["nodes"], row[key]) for row in rows if key in row]
        name = "predicted from accuracies" if key == predicted else "counted"
        if points:
            ax.plot(*zip(*points, strict=True), style, color=shade, label=name)
        if points and best:
            nodes, speed = max(points, key=lambda point: point[1])  # of equals the fewest nodes
            ax.plot(nodes, speed, "*", markersize=14, color=shade, label=f"best: {nodes} nodes")


def _shade(head: int) -> str:
    """The colour of a head, the same in every figure."""
    return CYCLE[head % len(CYCLE)]
