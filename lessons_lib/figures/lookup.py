"""What was copied (lesson 07): a text coloured by who produced each token, and counts by kind of prompt."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import BLUE, COLORS, CYCLE, GOLD, GREEN, INK, PALE, WIDTH, axes

PRODUCERS = {"model": PALE, "prompt": GREEN, "answer": GOLD}  # the target itself; copied from prompt or answer
SAID = {"model": "the model's own forward", "prompt": "copied from the prompt", "answer": "copied from the answer"}
ADVANCE = 0.602  # of the font size: how far a monospaced character reaches
MARKERS = "os^Dv<>P*X"  # lines differ in marker as well as in colour


def plot_spans(pieces: Sequence[tuple[str, str]], columns: int = 84) -> Axes:
    """A text with a background that says who produced each piece; copied pieces are underlined as well.

    pieces: (text, producer), in order, producer one of PRODUCERS. Raises ValueError for another or for no text.
    """
    if strange := {who for _, who in pieces} - set(PRODUCERS):
        raise ValueError(f"producer {min(strange)!r} is not known; choose from {', '.join(PRODUCERS)}")
    spans = lay_out(pieces, columns)
    if not spans:
        raise ValueError("nothing to draw: pass at least one piece of text")
    lines = spans[-1][0] + 1
    ax = axes((WIDTH, 0.19 * (lines + 2)))
    ax.figure.set_layout_engine("none")
    ax.set_position((0.01, 0, 0.98, lines / (lines + 2)))
    ax.set(xlim=(0, columns), ylim=(lines, 0))
    ax.set_axis_off()
    size = 0.98 * WIDTH * 72 / columns / ADVANCE
    for line, column, text, who in spans:
        ax.add_patch(Rectangle((column, line + 0.04), len(text), 0.88, color=PRODUCERS[who], alpha=0.45, linewidth=0))
        if who != "model":
            ax.plot([column, column + len(text)], [line + 0.92] * 2, color=PRODUCERS[who], linewidth=1.4)
        ax.text(column, line + 0.5, text, family="monospace", size=size, va="center", color=INK, parse_math=False)
    handles = [Patch(color=PRODUCERS[who], alpha=0.45, label=SAID[who]) for who in PRODUCERS]
    beside = dict(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1)
    ax.legend(handles=handles, frameon=False, fontsize=9, **beside)
    return ax


def lay_out(pieces: Sequence[tuple[str, str]], columns: int) -> list[tuple[int, int, str, str]]:
    """Pieces -> (line, column, text, producer), broken at line ends of the text and where `columns` characters are
    full: behind a space where the piece has one, else between pieces, else anywhere."""
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


def plot_guesses(rows: Iterable[Any], ax: Axes | None = None) -> Axes:
    """Counts against the number of guesses, a line per kind of prompt.

    rows: `kind`, `num_tokens`, `tokens_per_forward` (solid) and, if predicted, `speed` (dashed).
    """
    ax = ax or axes()
    for number, (kind, group) in enumerate(by_key(as_dicts(rows), "kind").items()):
        group = sorted(group, key=lambda row: row["num_tokens"])
        at, shade = [row["num_tokens"] for row in group], CYCLE[number % len(CYCLE)]
        marker = MARKERS[number % len(MARKERS)]
        counted = [row["tokens_per_forward"] for row in group]
        ax.plot(at, counted, marker=marker, markersize=4, color=shade, label=kind)
        if all("speed" in row for row in group):
            ax.plot(at, [row["speed"] for row in group], "--", marker=marker, markersize=3, color=shade)
    ax.axhline(1, linestyle=":", color=COLORS["limit"])
    ax.set(xlabel="number of guesses", ylabel="times plain decoding", ylim=(0, None))
    ax.legend(title="solid: tokens per forward\ndashed: predicted speed", loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def plot_lookup(rows: Iterable[Any], ax: Axes | None = None) -> Axes:
    """Two bars per kind of prompt: tokens per forward, and the speed over plain that follows (1 is dotted).

    rows: `kind`, `tokens_per_forward`, `speed`.
    """
    rows, ax = as_dicts(rows), ax or axes()
    bars = (("tokens_per_forward", "tokens per forward", -0.2, GREEN), ("speed", "predicted speed", 0.2, BLUE))
    for key, label, shift, shade in bars:
        values = [row[key] for row in rows]
        drawn = ax.barh([i + shift for i in range(len(rows))], values, height=0.38, color=shade, label=label)
        ax.bar_label(drawn, fmt="%.2f", padding=3, fontsize=9)
    ax.axvline(1, linestyle=":", color=COLORS["limit"])
    ax.set_yticks(range(len(rows)), [row["kind"] for row in rows])
    ax.invert_yaxis()
    longest = max(row[key] for row in rows for key, *_ in bars)
    ax.set(xlabel="times plain decoding (dotted: 1)", xlim=(0, 1.15 * longest))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return ax
