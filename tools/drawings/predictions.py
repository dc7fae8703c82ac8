"""The picture of README: every prediction of the stored lessons and benches against its measurement."""

from math import hypot
from string import ascii_lowercase
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lessons_lib.course.figures import BLUE, FONT_SIZE, GREY, INK, ORANGE, PAPER, SMALL
from lessons_lib.course.lessons import CLAIMS, find
from lessons_lib.measure.results import WITHIN, Result
from tools.drawings.shapes import GALLERY
from tools.predictions import factor, misses
from tools.predictions import predictions as collect

SIZE = (5.6, 5.8)  # inches; narrow, so that its text can be read on a phone
NAMED = 3  # misses named on each side of the diagonal, the worst ones; RESULTS.md lists all
LETTERS = 42  # in a line of a corner


def predictions() -> Figure:
    """Measured over predicted values on logarithmic axes, the band of 25%, the misses with letters and names."""
    found = collect(find(), CLAIMS.parent)
    return draw(found, misses(found))


def draw(found: list[Result], off: list[Result]) -> Figure:
    """The figure, labelled with its alt text."""
    figure = Figure(figsize=SIZE, facecolor=PAPER, layout="constrained")
    ax = figure.add_subplot()
    # diagonal and band
    numbers = [number for one in found for number in (one.predicted, one.measured)]
    ends = [min(numbers) / 2, max(numbers) * 2]
    ax.plot(ends, ends, color=GREY, linewidth=0.8)
    low, high = ([end * by for end in ends] for by in (1 / (1 + WITHIN), 1 + WITHIN))
    ax.fill_between(ends, low, high, color=BLUE, alpha=0.18, linewidth=0)
    # points
    good = [one for one in found if one not in off]
    ax.plot([one.predicted for one in good], [one.measured for one in good], "o", color=BLUE, markersize=3.5, alpha=0.7,
            label="within a factor of 1.25")  # fmt: skip
    ax.plot([one.predicted for one in off], [one.measured for one in off], "o", color=ORANGE, markersize=4.5,
            label="further off")  # fmt: skip
    # the worst misses by name: above the diagonal in the upper left corner, below it in the lower right one
    sides = ([one for one in off if one.ratio > 1][:NAMED], [one for one in off if one.ratio < 1][:NAMED])
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    ax.set(xlabel="predicted (each dot in its own unit: ms, times ...)", ylabel="measured")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    figure.legend(loc="outside lower center", ncols=2, fontsize=SMALL, frameon=False)
    name_misses(ax, *sides)
    ax.set_title(title(found, off), fontsize=FONT_SIZE, color=INK, loc="left")
    figure.set_label(alt(found, off))
    return figure


def name_misses(ax: Axes, above: list[Result], below: list[Result]) -> None:
    """Put a letter beside each of these misses, and their names into the two empty corners."""
    letters, taken = iter(ascii_lowercase), []
    for side, way, (x, y) in ((above, 1, (0.02, 0.985)), (below, -1, (0.98, 0.015))):
        lines = ["measured more than predicted" if way > 0 else "measured less than predicted"]
        for one in sorted(side, key=lambda one: one.predicted * one.measured):
            letter, point = next(letters), (one.predicted, one.measured)
            # the nearest place, away from the diagonal, that no other letter has
            at = ax.transData.transform(point) * 72 / ax.figure.dpi
            away = next(d for d in range(8, 200, 4) if all(hypot(*(at + (-way * d, way * d) - t)) > 12 for t in taken))
            taken.append(at + (-way * away, way * away))
            ax.annotate(letter, point, (-way * away, way * away), textcoords="offset points", ha="center",
                        va="center", fontsize=SMALL, color=ORANGE, weight="bold")  # fmt: skip
            lines += wrap(f"{letter}  {named(one)}: {factor(one):.1f}x", LETTERS)
        ax.text(x, y, "\n".join(lines), transform=ax.transAxes, ha="left" if way > 0 else "right", ma="left",
                va="top" if way > 0 else "bottom", fontsize=SMALL - 1, color=INK, linespacing=1.3)  # fmt: skip


def named(one: Result) -> str:
    """What was predicted, and in which lesson."""
    return one.claim + (f" (lesson {one.lesson})" if one.lesson.isdigit() else "")


def title(found: list[Result], off: list[Result]) -> str:
    return f"{len(found) - len(off)} of {len(found)} predictions are within a factor of 1.25"


def alt(found: list[Result], off: list[Result]) -> str:
    """Alt text: counts, and the worst misses in words."""
    worst = "; ".join(f"{named(one)}, off by a factor of {factor(one):.1f}" for one in off[:1])
    return (
        f"Scatter plot of predictions against measurements on logarithmic axes. {title(found, off)} and lie in a "
        f"shaded band along the diagonal; {len(off)} lie outside. The worst: {worst}."
    )


GALLERY["predictions"] = predictions
