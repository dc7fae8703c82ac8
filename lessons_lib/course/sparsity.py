"""Figures and widget of the lesson on effective sparsity: needed shares, and the gain of skipping the rest."""

from collections.abc import Sequence
from functools import partial
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from lessons_lib.course.figures import CYCLE, GREY, INK, Row, axes, grouped, look
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.sparsity import skippable, speedup, union


def plot_heads(values: Tensor, label: str) -> Axes:
    """A share for each layer (rows) and head (columns), 0 to 1. values (L, H); label: its meaning."""
    ax = axes((4.6, 5.2))
    image = ax.imshow(values.tolist(), vmin=0, vmax=1, cmap="viridis", aspect="auto")
    ax.grid(False)
    ax.set(xlabel="head", ylabel="layer", xticks=range(values.shape[1]))
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax


def plot_skipping_gains(rows: Sequence[Row]) -> Axes:
    """Speedup over dense against the skipped share (median, quartiles), with dashed predictions.

    rows: `label`, `sparsity`, `samples` and `predicted`. Points of several labels are drawn side by side
    around their common S, and equal predictions alternate their dashes. Dotted: 1/(1 - S), the limit of a matmul that
    reads only what it needs.
    """
    ax, labels = axes(), grouped(rows, "label")
    for i, (label, group) in enumerate(labels.items()):
        at, (color, marker) = np.array([row["sparsity"] for row in group]), look(i)
        low, middle, high = np.array([np.percentile(row["samples"], (25, 50, 75)) for row in group]).T
        beside, bars = at + 0.006 * (i - (len(labels) - 1) / 2), (middle - low, high - middle)
        ax.errorbar(beside, middle, yerr=bars, fmt=marker, capsize=3, color=color, label=label)
        ax.plot(*by_bytes(at, [row["predicted"] for row in group]), linestyle=(4 * i, (4, 8)), color=color)
    ax.axhline(1, color=GREY, linewidth=1)
    at = sorted({row["sparsity"] for row in rows if row["sparsity"] < 1})
    ax.plot(*by_bytes(at, [speedup(1, s) for s in at]), ":", color=INK, label="limit 1/(1 - S)")
    ax.set(xlabel="share skipped, S (points stand side by side around theirs)", yscale="log")
    ax.set(ylabel="times as fast as dense")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend(fontsize=9, title="dashed: predicted, in turn where equal; bars: quartiles")
    return ax


def by_bytes(at: Sequence[float], gains: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate gains at ascending shares `at` -> curve (x, y); bytes, the reciprocals, are linear in between."""
    x = np.union1d(np.linspace(at[0], at[-1], 101), at)
    return x, 1 / np.interp(x, at, 1 / np.asarray(gains))


PERCENT = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
NAMES = {
    "mlp": "MLP, known beforehand",
    "gate first": "gate computed first",
    "intermediate": "intermediate vector first",
    "inputs": "inputs of every matmul",
}


def draw_limits(shape: ModelConfig, percent: int, rows: int) -> tuple[Axes, str]:
    """Upper bounds on the gain of skipping S in a step of `rows` tokens, by what is known in advance.

    The tokens' patterns are independent, and only what no token needs is skipped: S^rows. A dot marks the chosen
    percent.
    """
    ax, levels, limits = axes(), [k / 100 for k in range(100)], []
    for color, (known, name) in zip(CYCLE, NAMES.items(), strict=False):
        share = skippable(shape, known)
        gains = [speedup(share, 1 - union(s, rows)) for s in (*levels, percent / 100)]
        ax.plot(levels, gains[:-1], color=color, label=name)
        ax.plot([percent / 100], gains[-1:], "o", color=color)
        limits.append(f"{gains[-1]:.2f} ({name})")
    ax.axvline(percent / 100, color=GREY, linewidth=1)
    ax.set(xlabel="sparsity of one row, S", ylabel="times as fast, at most", xlim=(0, 1), ylim=(1, None))
    ax.legend(fontsize=9)
    each, skipped = "one row" if rows == 1 else f"each of {rows} rows", 1 - union(percent / 100, rows)
    said = f"{percent}% zero in {each}: {skipped:.0%} skipped by all; times as fast at most: {', '.join(limits)}"
    ax.set_title(fill(said, 72), fontsize=9)
    return ax, f"Largest possible speed-up of a decode step of {shape.name} against sparsity. {said}."


def show_limits(shape: ModelConfig) -> None:
    """Sliders for the sparsity and the number of tokens per step; shows the limits. The model needs a gated MLP."""
    controls = {
        "percent": Slider("sparsity of one row", PERCENT, 50, "%"),
        "rows": Slider("rows in one step", ROWS, 1),
    }
    show(controls, partial(draw_limits, shape))
