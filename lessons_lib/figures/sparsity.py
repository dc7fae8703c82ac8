"""Shares that matter per layer and head, what leaving the rest out costs, and what skipping gains (lesson 12)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import CYCLE, GREY, INK, axes, look
from lessons_lib.measure.sparsity import speedup, union

ASIDE = 0.006  # of S, by which points of several labels stand beside each other, around the place that they share


def plot_heads(values: Tensor, label: str) -> Axes:
    """A share for each layer (rows) and head (columns), 0 to 1. values (L, H); label: what it is."""
    ax = axes((4.6, 5.2))
    image = ax.imshow(values.tolist(), vmin=0, vmax=1, cmap="viridis", aspect="auto")
    ax.grid(False)
    ax.set(xlabel="head", ylabel="layer", xticks=range(values.shape[1]))
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax


def plot_lines(rows: Iterable[Any], x: str, y: str, scale: str = "linear") -> Axes:
    """A line with its own marker for each `label`. rows: `label`, and the values under x and y, which name the axes.

    scale: of the x axis. ValueError without rows.
    """
    ax = axes()
    for i, (label, group) in enumerate(by_key(as_dicts(rows), "label").items()):
        at, values, (shade, marker) = [row[x] for row in group], [row[y] for row in group], look(i)
        ax.plot(at, values, marker=marker, color=shade, label=label)
    ax.set(xlabel=x, ylabel=y, xscale=scale)
    if scale == "log":  # few points, far apart: each is named
        at = sorted({value for line in ax.get_lines() for value in line.get_xdata()})
        ax.set_xticks(at, [f"{value:g}" for value in at])
        ax.minorticks_off()
    ax.legend(fontsize=9)
    return ax


def plot_gains(rows: Iterable[Any]) -> Axes:
    """Times as fast as dense against the share skipped (median, quartiles), dashed as predicted; labels side by side.

    rows: `label`, `sparsity`, `samples`, and `predicted` where there is a prediction; between two rows it is drawn as
    what it is made of, bytes that fall in a straight line; up to three equal neighbours show dashes in turn.
    Dotted: 1/(1 - S), the limit of a product that reads only what it needs. ValueError without rows.
    """
    ax, rows = axes(), as_dicts(rows)
    labels = by_key(rows, "label")
    for i, (label, group) in enumerate(labels.items()):
        at, (shade, marker) = np.array([row["sparsity"] for row in group]), look(i)
        low, middle, high = np.array([np.percentile(row["samples"], (25, 50, 75)) for row in group]).T
        beside, bars = at + ASIDE * (i - (len(labels) - 1) / 2), (middle - low, high - middle)
        ax.errorbar(beside, middle, yerr=bars, fmt=marker, capsize=3, color=shade, label=label)
        if all("predicted" in row for row in group):
            ax.plot(*by_bytes(at, [row["predicted"] for row in group]), linestyle=(4 * i, (4, 8)), color=shade)
    ax.axhline(1, color=GREY, linewidth=1)
    at = sorted({row["sparsity"] for row in rows if row["sparsity"] < 1})
    ax.plot(*by_bytes(at, [speedup(1, s) for s in at]), ":", color=INK, label="limit 1/(1 - S)")
    ax.set(xlabel="share skipped, S (points stand side by side around theirs)", yscale="log")
    ax.set(ylabel="times as fast as dense")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend(fontsize=9, title="dashed: predicted, in turn where equal; bars: quartiles")
    return ax


def by_bytes(at: Sequence[float], gains: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Gains at ascending shares `at` -> a curve through them (x, y), whose reciprocals, bytes, are straight between."""
    x = np.union1d(np.linspace(at[0], at[-1], 101), at)
    return x, 1 / np.interp(x, at, 1 / np.asarray(gains))


def plot_limits(shares: dict[str, float], sparsity: float, width: int) -> Axes:
    """Most that skipping S gains in a step of `width` rows whose patterns are independent, and where `sparsity` is.

    shares: name -> share of the step that the sparsity applies to, 0 to 1 (else ValueError, as for a sparsity outside).
    Skipped is what no row needs, S^w.
    """
    ax, levels = axes(), [k / 100 for k in range(100)]
    for shade, (name, share) in zip(CYCLE, shares.items(), strict=False):
        ax.plot(levels, [speedup(share, 1 - union(s, width)) for s in levels], color=shade, label=name)
        ax.plot([sparsity], [speedup(share, 1 - union(sparsity, width))], "o", color=shade)
    ax.axvline(sparsity, color=GREY, linewidth=1)
    ax.set(xlabel="sparsity of one row, S", ylabel="times as fast, at most", xlim=(0, 1), ylim=(1, None))
    ax.legend(fontsize=9)
    return ax
