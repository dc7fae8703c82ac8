"""A sweep's figure: how each claim of a lesson changes with a parameter, predicted and measured."""

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.course.figures import SMALL, Row, grouped, look

ACROSS, WIDE, HIGH = 3, 11.0, 2.6  # panels beside each other; inches of a figure's width, and of a panel's height


def plot_sweep(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
    """A panel for each claim: measured (filled) and predicted (open) over the first parameter that changes.

    rows: `lesson`, `claim`, `unit`, `measured` and `predicted` (numbers or None), and a value under each of names. A
    number goes along the axis rather than a name does; the other parameters that change make lines. A claim that
    stands at one value only has no panel; None without any panel.
    """
    rows = [row for row in rows if row.get("measured") is not None or row.get("predicted") is not None]
    changing = [name for name in names if len({str(row[name]) for row in rows}) > 1]
    changing.sort(key=lambda name: not all(number(row[name]) for row in rows))  # stable: numbers first
    if not changing:
        return None
    along, *others = changing
    claims = {c: found for c, found in grouped(rows, "claim").items() if len({str(row[along]) for row in found}) > 1}
    if not claims:
        return None
    rows = [{**row, "line": " ".join(f"{name}={row[name]}" for name in others)} for row in rows]
    lines = list(grouped(rows, "line"))
    high, wide = -(-len(claims) // ACROSS), min(ACROSS, len(claims))
    figure, grid = plt.subplots(high, wide, figsize=(WIDE, HIGH * high), layout="compressed", squeeze=False)
    for ax in grid.flat[len(claims) :]:
        ax.remove()
    for ax, claim in zip(grid.flat, claims, strict=False):
        plot_claim(ax, [row for row in rows if row["claim"] == claim], along, lines)
        ax.set_title(textwrap.fill(claim, 34), fontsize=SMALL)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=SMALL)
    by = f", a line for each of {', '.join(lines)}" if len(lines) > 1 else ""
    said = f"{rows[0]['lesson']} over {along}{by}; filled: measured, open: predicted: {'; '.join(claims)}"
    figure.set_label(said)  # the alt text
    return figure


def plot_claim(ax: Axes, rows: Sequence[Row], along: str, lines: Sequence[str]) -> None:
    """One panel. lines: all that any panel shows, so that each looks the same in all. Names are not joined by lines."""
    names = None if all(number(row[along]) for row in rows) else list(dict.fromkeys(str(row[along]) for row in rows))
    for line, group in grouped(rows, "line").items():
        color, marker = look(lines.index(line))
        for kind, dash, fill in (("predicted", "--", "none"), ("measured", "-", "full")):
            known = [row for row in group if row.get(kind) is not None]
            spots = sorted((names.index(str(row[along])) if names else row[along], row[kind]) for row in known)
            style = dict(linestyle="none" if names else dash, fillstyle=fill, color=color, marker=marker)
            ax.plot([x for x, _ in spots], [y for _, y in spots], label=f"{kind} {line}".strip(), **style)
    if names:
        ax.set_xticks(range(len(names)), names)
        ax.margins(x=0.2)
    most = max(row[kind] for row in rows for kind in ("predicted", "measured") if row.get(kind) is not None)
    ax.set(xlabel=along, ylabel=rows[0].get("unit", ""), ylim=(0, 1.1 * most) if most > 0 else None)


def number(value: Any) -> bool:
    """Whether a value can lie along an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)
