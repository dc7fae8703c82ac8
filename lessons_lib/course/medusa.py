"""Figures and widget of the Medusa lesson: the tree and its mask, training and accuracy of the heads."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from statistics import mean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lessons_lib.course.figures import (
    ABOVE,
    COLORS,
    CYCLE,
    INK,
    MARKERS,
    SMALL,
    WIDTH,
    Row,
    axes,
    plot_mask,
    tint,
)
from lessons_lib.course.widgets import Slider, show
from lessons_lib.decoding.draft_tree import ROOT
from lessons_lib.decoding.proposers.tree_shape import Accuracies, TreeShape, ancestors, best_tree, speed_by_size
from lessons_lib.measure.cost import WidthCurve, width_cost

KINDS = {"root": INK, "draft": COLORS["medusa"]}
LABELLED = 40  # largest tree whose nodes are labelled
SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def layout(shape: TreeShape) -> dict[int, tuple[float, float]]:
    """Positions of the nodes, {node: (depth, row)}, ROOT included.

    Each leaf has its own row; other nodes are in the middle of their children.
    """
    rows = {ROOT: 0.0}
    rows |= {leaf: row for row, leaf in enumerate(sorted(shape.leaves, key=shape.choices.__getitem__))}
    for node, below in reversed(shape.children.items()):  # children first
        rows[node] = mean([rows[below[0]], rows[below[-1]]])
    depths = dict(enumerate(shape.depths)) | {ROOT: 0}
    return {node: (depths[node], rows[node]) for node in [ROOT, *range(len(shape.choices))]}


def plot_tree(shape: TreeShape, names: Sequence[str], ax: Axes) -> Axes:
    """The tree from left to right: the root, the most likely tokens of head 1, then those of head 2, and so on."""
    at, colors = layout(shape), [INK, *[COLORS["medusa"]] * len(shape.choices)]
    edges = [(at[parent], at[node]) for node, parent in enumerate(shape.parents)]
    ax.add_collection(LineCollection(edges, colors=colors[1:], linewidths=1.2, zorder=1))
    ax.scatter(*zip(*at.values(), strict=True), 28, colors, zorder=2)
    if len(shape.choices) <= LABELLED:
        for place, name, color in zip(at.values(), names, colors, strict=True):
            box = {"boxstyle": "round,pad=0.25", "facecolor": tint(color), "edgecolor": color}
            ax.text(*place, name, ha="center", va="center", fontsize=SMALL, color=INK, bbox=box)
    ax.set_xticks(range(shape.depth + 1), ["root", *(f"head {k}" for k in range(1, shape.depth + 1))])
    ax.set_yticks([])
    ax.set(xlim=(-0.4, shape.depth + 0.4), ylim=(max(1, len(shape.leaves)) - 0.5, -0.5))
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def plot_tree_and_mask(shape: TreeShape) -> Figure:
    """The tree and its attention mask; the mask's rows are labelled with the distance from the root."""
    high = max(2.4, 0.8 + 0.22 * len(shape.leaves)) if len(shape.choices) <= LABELLED else 5.2  # a line for each leaf
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(WIDTH, high + 5.8), height_ratios=(high, 5.8), layout="compressed"
    )
    names = ["root", *(",".join(map(str, choice)) for choice in shape.choices)]  # ranks on the way to a node
    plot_tree(shape, names, upper)
    rows = [f"{name}  +{depth}" for name, depth in zip(names, [0, *shape.depths], strict=True)]
    plot_mask(ancestors(shape), [1, *[2] * len(shape.choices)], list(KINDS.values()), names, rows, lower)
    lower.set(xlabel="may look at", ylabel="token, and where it stands")
    shown = [Patch(color=color, label=name) for name, color in KINDS.items()]
    lower.legend(handles=shown, loc="upper right", fontsize=SMALL)
    return figure


def plot_heads_training(curve: Iterable[Row]) -> Figure:
    """Training and validation loss against step, and each head's validation accuracy.

    curve: rows of `step`, `loss` (missing at the very start), and in some `held_loss` (both in nats, weighted over
    heads), `top1` and `top5`, a share for each head.
    """
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 6.4), layout="compressed")
    rows = list(curve)
    trained, held = [row for row in rows if "loss" in row], [row for row in rows if "held_loss" in row]
    steps, losses = [row["step"] for row in trained], [row["loss"] for row in trained]
    upper.plot(steps, losses, color=tint(INK, 0.4), label="training batch")
    steps, losses = [row["step"] for row in held], [row["held_loss"] for row in held]
    upper.plot(steps, losses, "o-", color=COLORS["medusa"], label="held-back texts")
    upper.set(xlabel="training step", ylabel="loss [nats, heads weighted]", ylim=(0, None))
    upper.legend()
    for key, style in (("top1", "-"), ("top5", "--")):
        for k, shares in enumerate(zip(*(row[key] for row in held), strict=True)):
            label = f"head {k + 1}" if key == "top1" else None
            lower.plot(steps, shares, style, color=CYCLE[k], label=label)
    lower.set(xlabel="training step", ylabel="draft tokens that are right", ylim=(0, 1))
    if held:
        lower.legend(title="solid: the most likely token; dashed: one of five", ncols=4, **ABOVE)
    return figure


def plot_head_accuracies(accuracies: Sequence[Sequence[float]]) -> Axes:
    """How often the right token is among a head's 1, 2, ... most likely tokens, a line per head.

    accuracies[k][i]: share of positions at which the i-th most likely token of head k + 1 is right.
    """
    ax = axes()
    for k, row in enumerate(accuracies):
        found = list(accumulate(row))
        ax.plot(range(1, len(row) + 1), found, f"{MARKERS[k]}-", color=CYCLE[k], label=f"head {k + 1}")
    ax.set_xticks(range(1, max(map(len, accuracies)) + 1))
    ax.set(xlabel="most likely tokens of the head", ylabel="right one among them", ylim=(0, 1))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def draw_medusa(
    accuracies: Accuracies, v: WidthCurve, heads_share: float, nodes: int, top_tokens: int, heads: int
) -> tuple[Figure, str]:
    """The best tree within the sliders' limits and its mask; the title shows expected tokens, cost and speedup."""
    allowed = [row[:top_tokens] for row in accuracies[:heads]]
    shape = best_tree(allowed, nodes)
    size = len(shape.choices)
    speed = speed_by_size(allowed, v, heads_share, size)[-1]
    said = (
        f"{size} nodes, {shape.depth} deep: {shape.expected_tokens(allowed):.2f} tokens a step expected, "
        f"v({1 + size}) = {width_cost(v)(1 + size):.2f}, speed {speed:.2f} of plain"
    )
    figure = plot_tree_and_mask(shape)
    figure.suptitle(said, fontsize=11)
    levels = ", ".join(f"{count} of head {depth}" for depth, count in sorted(Counter(shape.depths).items()))
    return figure, (
        f"The best tree of at most {nodes} nodes from the {top_tokens} top tokens of {heads} heads, beside its mask: "
        f"{said}. Draft tokens: {levels or 'none'}. Each node sees itself and the nodes on its way from the root."
    )


def show_medusa(accuracies: Accuracies, v: WidthCurve, heads_share: float, nodes: int) -> None:
    """Sliders for nodes, most likely tokens per head and number of heads; shows the best tree within them.

    v: the machine's measured width curve, {w: v}. heads_share: time of the heads in a step over a one-token forward
    pass, assumed equal for any number of heads. nodes: initial value, rounded down to an available one.
    """
    ranks, count = range(1, 1 + max(map(len, accuracies))), len(accuracies)
    controls = {
        "nodes": Slider("nodes", SIZES, max(size for size in SIZES if size <= nodes)),
        "top_tokens": Slider("most likely tokens per head", ranks, min(4, ranks[-1])),
        "heads": Slider("heads", range(1, 1 + count), count),
    }
    show(controls, partial(draw_medusa, accuracies, v, heads_share))
