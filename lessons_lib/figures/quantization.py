"""Levels of formats, errors of rounding, outliers, and quality against bits (lesson 10).

What takes rows raises ValueError without any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from lessons_lib.figures.compare import plot_prediction
from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.sparsity import plot_lines
from lessons_lib.figures.style import ABOVE, BLUE, CYCLE, GREY, INK, ORANGE, SMALL, WIDTH, axes, look, panels, tint

BINS = 80
FAR = 8  # times
MOST_DRAWN = 200_000  # values of a histogram; of more, every so many
ROOMY = "osp"  # markers that a digit fits in


def plot_levels(levels: Mapping[str, Sequence[float]]) -> Axes:
    """One line of ticks for each format, all values it has between -1 and 1, over a normal law."""
    ax = axes((6.4, 0.5 + 0.55 * len(levels)))
    for place, values in enumerate(levels.values()):
        shade = CYCLE[place % len(CYCLE)]
        ax.vlines(list(values), place - 0.32, place + 0.32, shade, linewidth=1.2 if len(values) < 40 else 0.5)
    at, floor = [k / 100 - 1 for k in range(201)], len(levels) - 0.5
    heights = [floor - len(levels) * math.exp(-4.5 * x * x) for x in at]  # three standard deviations fit
    ax.fill_between(at, floor, heights, color=tint(GREY, 0.12), linewidth=0, zorder=0)
    ax.set_yticks(range(len(levels)), [f"{name}\n{len(values)} levels" for name, values in levels.items()])
    ax.set(xlabel="value over the largest of its group", xlim=(-1.03, 1.03), ylim=(len(levels) - 0.5, -0.5))
    ax.grid(False)
    return ax


def plot_rounding(x: Tensor, rounded: Tensor) -> Figure:
    """Above, how values are spread before and after rounding; below, the errors. x, rounded: of one shape (...)."""
    upper, lower = panels(2, (WIDTH, 5.6), 1)
    stride = max(1, x.numel() // MOST_DRAWN)
    x, rounded = (part.detach().flatten()[::stride].float().cpu() for part in (x, rounded))
    most = float(x.abs().quantile(0.999)) or 1.0
    upper.hist(x.tolist(), BINS, range=(-most, most), color=tint(BLUE, 0.45), label="as they were")
    upper.hist(rounded.tolist(), BINS, range=(-most, most), histtype="step", color=ORANGE, label="rounded")
    upper.set(xlabel="value", ylabel="weights")
    upper.legend(fontsize=9)
    errors = rounded - x
    wide = float(errors.abs().max()) or 1e-12
    lower.hist(errors.tolist(), BINS, range=(-wide, wide), color=ORANGE)
    lower.set(xlabel="error")
    lower.ticklabel_format(axis="x", style="sci", scilimits=(-3, 3))
    return upper.figure


def plot_dots(rows: Iterable[Any], x: str) -> Axes:
    """A line for each `label`, with a dot for each `method` at the value under x, which names the axis."""
    rows = as_dicts(rows)
    labels = list(by_key(rows, "label"))
    ax = axes((6.4, 1.1 + 0.34 * len(labels)))
    for i, (method, group) in enumerate(by_key(rows, "method").items()):
        places = [labels.index(row["label"]) for row in group]
        shade, marker = look(i)
        ax.plot([row[x] for row in group], places, marker, color=shade, label=method)
    ax.set_yticks(range(len(labels)), labels)
    ax.set(xlabel=x, ylim=(len(labels) - 0.5, -0.5))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, frameon=False, fontsize=9)
    return ax


def plot_groups(rows: Iterable[Any], y: str) -> Axes:
    """A line for each `label` over the size of the group. rows: `label`, `group`, and the value under y."""
    rows = as_dicts(rows)
    ax, at = plot_lines(rows, "group", y, "log"), sorted({row["group"] for row in rows})
    ax.set_xticks(at, [f"{group:,}" for group in at])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("weights in a group, g")
    return ax


def plot_duel(rows: Iterable[Any], x: str, y: str) -> Axes:
    """Each row a dot at its values under x and y, beside the line where they are equal; below it y is smaller.

    rows: `label`, which has a colour and marker of its own, and both values.
    """
    rows, ax = as_dicts(rows), axes((5.6, 4.4))
    for i, (label, group) in enumerate(by_key(rows, "label").items()):
        at, values = [row[x] for row in group], [row[y] for row in group]
        shade, marker = look(i)
        ax.plot(at, values, marker, color=shade, label=label, markersize=5, alpha=0.75)
    end = 1.05 * max(row[key] for row in rows for key in (x, y))
    ax.plot([0, end], [0, end], ":", color=INK)
    ax.set(xlabel=x, ylabel=y, xlim=(0, end), ylim=(0, end))
    ax.legend(fontsize=9)
    return ax


def plot_channels(maxima: Mapping[str, Tensor], y: str) -> Axes:
    """A value of each channel, a line for each name; channels in the order of the first name's values, largest first.

    maxima: name -> (K,), at least one. y names the axis.
    """
    ax = axes((6.4, 3.4))
    order = next(iter(maxima.values())).argsort(descending=True)
    at = range(1, 1 + len(order))
    for i, (name, values) in enumerate(maxima.items()):
        ax.plot(at, values[order].tolist(), color=CYCLE[i % len(CYCLE)], linewidth=1, label=name, alpha=0.85)
    ax.set(xlabel="channel, loudest first", ylabel=y, xscale="log", yscale="log")
    ax.legend(fontsize=9)
    return ax


def plot_scaling(rows: Iterable[Any], x: str, y: str) -> Axes:
    """A line for each `label`, its `bits` in each dot. x, logarithmic, and y name values and axes."""
    ax = axes((6.4, 4.0))
    for i, (label, group) in enumerate(by_key(as_dicts(rows), "label").items()):
        group, (shade, _) = sorted(group, key=lambda row: row[x]), look(i)
        at, values = [row[x] for row in group], [row[y] for row in group]
        dots = dict(marker=ROOMY[i % len(ROOMY)], color=shade, markerfacecolor=tint(shade), markersize=11)
        ax.plot(at, values, color=shade)
        ax.plot(at, values, linestyle="none", label=label, zorder=3, **dots)
        for row in group:
            ax.text(row[x], row[y], f"{row['bits']}", fontsize=9, ha="center", va="center_baseline", zorder=4)
    ax.set(xlabel=x, ylabel=y, xscale="log")
    ax.legend(fontsize=9)
    return ax


def plot_steps(rows: Iterable[Any], x: str, y: str) -> Axes:
    """As `plot_prediction`, each dot with its `format` beside it, bars of quartiles and its own prediction as a dash.

    Logarithmic where times are far apart. Errors as `plot_prediction`.
    """
    rows = [row | {"samples": _quartiles(row["samples"])} for row in as_dicts(rows)]
    ax, middles = plot_prediction(rows, x, y), [median(row["samples"]) for row in rows]
    for line in (line for line in ax.get_lines() if line.get_linestyle() == "--"):
        line.set(linestyle="none", marker="_", markersize=18, markeredgewidth=2)
    ax.legend(title="dots: measured; bars: quartiles; dashes: predicted", ncols=4, **ABOVE)
    for row, middle in zip(rows, middles, strict=True):
        beside = [median(other["samples"]) for other in rows if all(other[key] == row[key] for key in ("method", x))]
        where = dict(xytext=(11, 4 if middle == max(beside) else -13), textcoords="offset points")  # else they overlap
        ax.annotate(row["format"], (row[x], middle), fontsize=SMALL, **where)
    if max(middles) > FAR * min(middles):
        ax.set(yscale="log", ylim=(min(middles) / 2, max(middles) * 2))
    return ax


def _quartiles(samples: Sequence[float]) -> list[float]:
    """The middle half of repeated measurements: where it begins, the median, where it ends."""
    return quantiles(samples, method="inclusive") if len(samples) > 1 else list(samples)
