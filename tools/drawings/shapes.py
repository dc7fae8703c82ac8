"""The few shapes of which every drawing is made, and the registry of drawings.

Ten units are one inch, x to the right and y upwards.
"""

from collections.abc import Callable, Sequence
from functools import wraps

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from lessons_lib.course.figures import FONT_SIZE, GREY, INK, PAPER, SMALL, WIDTH, tint

UNITS = 10  # units per inch
Point = tuple[float, float]
GALLERY: dict[str, Callable[[], Figure]] = {}  # every drawing by its name, which is also that of its file in imgs/


def drawing(alt: str) -> Callable[[Callable[[], Axes]], Callable[[], Figure]]:
    """Register a function that draws on a canvas. Calling it then returns the Figure, labelled with its alt text."""

    def register(draw: Callable[[], Axes]) -> Callable[[], Figure]:
        @wraps(draw)
        def labelled() -> Figure:
            figure = draw().figure
            figure.set_label(alt)
            return figure

        GALLERY[draw.__name__] = labelled
        return labelled

    return register


def canvas(height: float) -> Axes:
    """An empty drawing, 64 units wide and `height` units high."""
    figure = Figure(figsize=(WIDTH, height / UNITS), facecolor=PAPER)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH * UNITS), ylim=(0, height))
    ax.set_axis_off()
    return ax


def note(ax: Axes, x: float, y: float, text: str, color: str = INK, align: str = "center",
         size: float = FONT_SIZE, bold: bool = False) -> None:  # fmt: skip
    """Text with its lines centred on y; `align`: the end of the text at x."""
    height, words = size * UNITS / 72, text.split("\n")
    for number, line in enumerate(words):
        # align lines by their baseline, so that equal lines are level whatever their letters
        level = y + height * (1.5 * ((len(words) - 1) / 2 - number) - 0.36)
        ax.text(x, level, line, color=color, ha=align, va="baseline", fontsize=size, family="DejaVu Sans",
                weight="bold" if bold else "normal")  # fmt: skip


def box(ax: Axes, x: float, y: float, width: float, height: float, text: str = "", color: str = GREY
) -> None:  # fmt: skip
    """A rounded box with its lower left corner at (x, y) and its text in the middle."""
    shape = "round,pad=0,rounding_size=0.6"
    ax.add_patch(FancyBboxPatch((x, y), width, height, shape, facecolor=tint(color), edgecolor=color))
    if text:
        note(ax, x + width / 2, y + height / 2, text)


def frame(ax: Axes, x: float, y: float, width: float, height: float) -> None:
    """A dashed frame around things that belong together."""
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=GREY, linestyle="--"))


def arrow(ax: Axes, start: Point, end: Point, color: str = INK, width: float = 1.4) -> None:
    """An arrow from start to end."""
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=color,
                                 linewidth=width, shrinkA=0, shrinkB=0))  # fmt: skip


def line(ax: Axes, points: Sequence[Point], color: str = INK, width: float = 1.4) -> None:
    """A line through points."""
    ax.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=width)


def cell(ax: Axes, x: float, y: float, size: float, color: str | None = None, text: str = "") -> None:
    """One square of a grid, lower left corner at (x, y); without colour an empty one."""
    fill = PAPER if color is None else tint(color, 0.35)
    ax.add_patch(Rectangle((x, y), size, size, facecolor=fill, edgecolor=GREY, linewidth=0.8))
    if text:
        note(ax, x + size / 2, y + size / 2, text, size=SMALL)


def grid(ax: Axes, x: float, y: float, size: float, colors: Sequence[Sequence[str]]) -> None:
    """A grid of cells, its upper left corner at (x, y), the first row on top."""
    for i, row in enumerate(colors):
        for j, shade in enumerate(row):
            cell(ax, x + j * size, y - (i + 1) * size, size, shade)


def key(ax: Axes, y: float, entries: Sequence[tuple[str | None, str]]) -> None:
    """A legend in one centred line: (colour, meaning)."""
    widths = [5.5 + 0.9 * len(text) for _, text in entries]
    x = (WIDTH * UNITS - sum(widths) + 2.5) / 2
    for (shade, text), width in zip(entries, widths, strict=True):
        cell(ax, x, y - 0.9, 1.8, shade)
        note(ax, x + 2.6, y, text, align="left", size=SMALL)
        x += width
