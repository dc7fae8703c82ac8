"""Figures that set a prediction beside what was measured (every lesson), and the width curve (lesson 00)."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.rows import as_dicts, by_key, plot_spread
from lessons_lib.figures.style import ABOVE, COLORS, axes, color


def plot_prediction(rows: Iterable[Any], x: str, y: str, ax: Axes | None = None) -> Axes:
    """Predicted (dashed) against measured (median, bar from minimum to maximum); the legend names what is drawn.

    rows: `method`, the value under `x`, `samples` (repeated measurements), and where there is a prediction
    `predicted`, or `low` and `high` for a bracket, shaded around its middle. `x`, `y` label the axes: name the unit.
    ValueError without rows, KeyError for a method without a colour, as in all figures.
    """
    ax, looks = ax or axes(), set()
    for method, group in by_key(as_dicts(rows), "method").items():
        group = sorted(group, key=lambda row: row[x])
        at, shade = [row[x] for row in group], color(method)
        if all("low" in row for row in group):
            low, high = [row["low"] for row in group], [row["high"] for row in group]
            ax.fill_between(at, low, high, color=shade, alpha=0.2, linewidth=0)
            looks.add("shaded")
        if all("predicted" in row or "low" in row for row in group):
            ax.plot(at, [_middle(row) for row in group], "--", color=shade)
            looks.add("dashed")
        plot_spread(ax, at, [row["samples"] for row in group], shade, method)
    ax.set(xlabel=x, ylabel=y, ylim=(0, None))
    ax.legend(title="dots: measured" + (f"; {', '.join(sorted(looks))}: predicted" if looks else ""))
    return ax


def _middle(row: Mapping[str, Any]) -> float:
    """What is predicted, or the middle of its bracket."""
    return row["predicted"] if "predicted" in row else (row["low"] + row["high"]) / 2


def plot_width_curve(curves: Mapping[str, Mapping[int, Any]]) -> Axes:
    """v(w): what a forward over w rows costs, in forwards over one row.

    curves: method -> {rows w: seconds, as samples with a median}; each needs w = 1. Drawn beside them: the two
    extremes, rows for free (memory is the limit) and rows at full price (arithmetic is), which soon leaves the picture.
    ValueError without curves, KeyError for one without w = 1 and for a method without a colour.
    """
    ax = axes()
    widest = max(max(curve) for curve in curves.values())
    dearest = 1.0
    for method, curve in curves.items():
        one, widths = curve[1].median, sorted(curve)
        relative = [[t / one for t in curve[w].times] for w in widths]
        middle = plot_spread(ax, widths, relative, color(method), method, "o-")
        dearest = max(dearest, *middle)
    ax.plot([1, widest], [1, widest], ":", color=COLORS["limit"], label="each row at full price")
    ax.plot([1, widest], [1, 1], "-.", color=COLORS["limit"], label="extra rows for free")
    ax.set(xlabel="rows w in one forward", ylabel="v(w), forwards over one row", ylim=(0, 1.4 * dearest))
    ax.legend(ncols=2, **ABOVE)
    return ax
