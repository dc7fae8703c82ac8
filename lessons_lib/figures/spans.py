"""A text whose pieces have a background each that says who produced them (lessons 06, 07)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from lessons_lib.figures.style import INK, WIDTH

ADVANCE = 0.602  # of the font size: the width of a monospaced character
LINE = 0.19  # inches that a line of text takes
UNDERLINED, STRUCK, BASELINE = 0.92, 0.5, 0.71  # of a line, from its top
Span = tuple[int, int, str, str]  # line, column, text, producer


class Producer(NamedTuple):
    """How the pieces of one producer look: background, what the legend says, and at which height a stroke."""

    shade: str
    said: str
    stroke: float | None = None


def spans_of(pieces: Sequence[tuple[str, str]], columns: int, producers: Mapping[str, Producer]) -> list[Span]:
    """(text, producer) in order, as lay_out places them in lines of `columns` characters.

    ValueError for an unknown producer or for no text.
    """
    if strange := {who for _, who in pieces} - set(producers):
        raise ValueError(f"producer {min(strange)!r} is not known; choose from {', '.join(producers)}")
    spans = lay_out(pieces, columns)
    if not spans:
        raise ValueError("nothing to draw: pass at least one piece of text")
    return spans


def lay_out(pieces: Sequence[tuple[str, str]], columns: int) -> list[Span]:
    """Pieces -> spans, broken at line ends of the text and where `columns` characters are full: behind a space where
    the piece has one, else between pieces, else anywhere."""
    spans, line, column = [], 0, 0
    for text, who in pieces:
        for number, part in enumerate(text.replace("\t", "    ").split("\n")):
            if number:
                line, column = line + 1, 0
            while part:
                room = columns - column
                fits = part if len(part) <= room else part[: part.rfind(" ", 0, room) + 1]
                if not fits and column:
                    line, column = line + 1, 0
                    continue
                fits = fits or part[:room]
                spans.append((line, column, fits, who))
                part, column = part[len(fits) :], column + len(fits)
    return spans


def draw_spans(ax: Axes, spans: Sequence[Span], columns: int, producers: Mapping[str, Producer]) -> Axes:
    """Draw spans, at least one, and their legend on axes that are 0.98 of a figure wide; columns: as of `spans_of`.

    Each character is placed by itself: a renderer rounds the width of every character to whole pixels, so that a
    longer text would end several characters before or after its background.
    """
    ax.set(xlim=(0, columns), ylim=(spans[-1][0] + 1, 0))
    ax.set_axis_off()
    size = 0.98 * WIDTH * 72 / columns / ADVANCE
    for line, column, text, who in spans:
        shade, _, stroke = producers[who]
        ax.add_patch(Rectangle((column, line + 0.04), len(text), 0.88, color=shade, alpha=0.45, linewidth=0))
        if stroke:
            ax.plot([column, column + len(text)], [line + stroke] * 2, color=shade, linewidth=1.4)
        for place, character in enumerate(text, column):
            if not character.isspace():
                ax.text(place, line + BASELINE, character, family="monospace", size=size, color=INK, parse_math=False)
    handles = [Patch(color=look.shade, alpha=0.45, label=look.said) for look in producers.values()]
    beside = dict(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1)
    ax.legend(handles=handles, frameon=False, fontsize=9, **beside)
    return ax
