"""A sweep's figure: how each claim of a lesson changes with a parameter, predicted and measured."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.figures.rows import by_key
from lessons_lib.figures.style import SMALL, look, panels

Rows = Sequence[Mapping[str, Any]]
ACROSS, WIDE, HIGH = 3, 11.0, 2.6  # panels beside each other; inches of a figure's width, and of a panel's height


def plot_sweep(rows: Rows, names: Sequence[str]) -> Figure | None:
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
    groups = {c: found for c, found in by_key(rows, "claim").items() if len({str(row[along]) for row in found}) > 1}
    if not groups:
        return None
    lines = list(dict.fromkeys(label(row, others) for row in rows))
    every = panels(len(groups), (WIDE, HIGH * -(-len(groups) // ACROSS)), ACROSS)
    for ax, (claim, found) in zip(every, groups.items(), strict=True):
        plot_claim(ax, found, along, others, lines)
        ax.set_title(textwrap.fill(claim, 34), fontsize=SMALL)
    return finished(every[0].figure, rows[0]["lesson"], along, groups, lines)


def finished(figure: Figure, lesson: str, along: str, groups: Mapping[str, Rows], lines: Sequence[str]) -> Figure:
    """With a legend for all panels, and in words what is seen."""
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=SMALL)
    by = f", a line for each of {', '.join(lines)}" if len(lines) > 1 else ""
    figure.set_label(f"{lesson} over {along}{by}; filled: measured, open: predicted: {'; '.join(groups)}")
    return figure


def plot_claim(ax: Axes, rows: Rows, along: str, others: Sequence[str], lines: Sequence[str]) -> None:
    """One panel; lines: all that any panel shows, so that each looks the same in all. Names are not joined by lines."""
    names = None if all(number(row[along]) for row in rows) else list(dict.fromkeys(str(row[along]) for row in rows))
    for line, group in by_key([dict(row) | {"line": label(row, others)} for row in rows], "line").items():
        shade, marker = look(lines.index(line))
        for kind, dash, fill in (("predicted", "--", "none"), ("measured", "-", "full")):
            known = [row for row in group if row.get(kind) is not None]
            spots = sorted((names.index(str(row[along])) if names else row[along], row[kind]) for row in known)
            x, y = [spot[0] for spot in spots], [spot[1] for spot in spots]
            dash = "none" if names else dash
            ax.plot(x, y, linestyle=dash, fillstyle=fill, label=f"{kind} {line}".strip(), color=shade, marker=marker)
    if names:
        ax.set_xticks(range(len(names)), names)
        ax.margins(x=0.2)
    most = max(row[kind] for row in rows for kind in ("predicted", "measured") if row.get(kind) is not None)
    ax.set(xlabel=along, ylabel=rows[0].get("unit", ""), ylim=(0, 1.1 * most) if most > 0 else None)


def label(row: Mapping[str, Any], others: Sequence[str]) -> str:
    """Which line a row belongs to: model=a dtype=bf16."""
    return " ".join(f"{name}={row[name]}" for name in others)


def number(value: Any) -> bool:
    """Whether a value can lie along an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)
