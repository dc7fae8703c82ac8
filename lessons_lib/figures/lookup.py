"""What was copied (lesson 07): a text coloured by who produced each token, and counts by kind of prompt."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.spans import LINE, UNDERLINED, Producer, draw_spans, spans_of
from lessons_lib.figures.style import ABOVE, BLUE, COLORS, GOLD, GREEN, LIFTED, PALE, WIDTH, axes, look

PRODUCERS = {
    "model": Producer(PALE, "the model's own forward"),
    "prompt": Producer(GREEN, "copied from the prompt", UNDERLINED),
    "answer": Producer(GOLD, "copied from the answer", UNDERLINED),
}


def plot_spans(pieces: Sequence[tuple[str, str]], columns: int = 84) -> Axes:
    """A text with a background that says who produced each piece; copied pieces are underlined as well.

    pieces: (text, producer), in order, producer one of PRODUCERS. columns: characters in a line. ValueError for another
    producer or for no text.
    """
    spans = spans_of(pieces, columns, PRODUCERS)
    lines = spans[-1][0] + 1
    ax = axes((WIDTH, LINE * (lines + 2)))
    ax.figure.set_layout_engine("none")
    ax.set_position((0.01, 0, 0.98, lines / (lines + 2)))
    return draw_spans(ax, spans, columns, PRODUCERS)


def plot_guesses(rows: Iterable[Any]) -> Axes:
    """Counts against the number of guesses, a line per kind of prompt.

    rows: `kind`, `num_tokens`, `tokens_per_forward` (solid) and, if predicted, `speed` (dashed). ValueError without
    rows.
    """
    ax = axes()
    for number, (kind, group) in enumerate(by_key(as_dicts(rows), "kind").items()):
        group = sorted(group, key=lambda row: row["num_tokens"])
        at, counted = ([row[key] for row in group] for key in ("num_tokens", "tokens_per_forward"))
        shade, marker = look(number)
        ax.plot(at, counted, marker=marker, markersize=4, color=shade, label=kind)
        if all("speed" in row for row in group):
            ax.plot(at, [row["speed"] for row in group], "--", marker=marker, markersize=3, color=shade)
    ax.axhline(1, linestyle=":", color=COLORS["limit"])
    ax.set(xlabel="number of guesses", ylabel="times plain decoding", ylim=(0, None))
    ax.legend(title="solid: tokens per forward\ndashed: predicted speed", loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def plot_lookup(rows: Iterable[Any]) -> Axes:
    """Two bars per kind of prompt: tokens per forward, and the speed over plain that follows (1 is dotted).

    rows: `kind`, `tokens_per_forward`, `speed`. ValueError without rows.
    """
    rows, ax = as_dicts(rows), axes()
    bars = (("tokens_per_forward", "tokens per forward", -0.2, GREEN), ("speed", "predicted speed", 0.2, BLUE))
    for key, label, shift, shade in bars:
        values = [row[key] for row in rows]
        drawn = ax.barh([i + shift for i in range(len(rows))], values, height=0.38, color=shade, label=label)
        ax.bar_label(drawn, fmt="%.2f", padding=3, fontsize=9, bbox=LIFTED)
    ax.axvline(1, linestyle=":", color=COLORS["limit"])
    ax.set_yticks(range(len(rows)), [row["kind"] for row in rows])
    ax.invert_yaxis()
    longest = max(row[key] for row in rows for key, *_ in bars)
    ax.set(xlabel="times plain decoding (dotted: 1)", xlim=(0, 1.15 * longest))
    ax.legend(ncols=2, **ABOVE)
    return ax
