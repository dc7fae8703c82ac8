"""Two models at work (lesson 06): what a sampled guess is worth, when drafting pays, and who wrote each token."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.figures.rows import as_dicts, plot_spread
from lessons_lib.figures.spans import LINE, STRUCK, UNDERLINED, Producer, Span, draw_spans, spans_of
from lessons_lib.figures.style import (
    ABOVE,
    BLUE,
    COLORS,
    CYCLE,
    FONT_SIZE,
    GREY,
    PALE,
    PAPER,
    WIDTH,
    axes,
    axes_in,
)

WRITERS = {
    "accepted": Producer(COLORS["accepted"], "drafted and accepted", UNDERLINED),
    "rejected": Producer(COLORS["rejected"], "drafted, rejected", STRUCK),
    "own": Producer(PALE, "the target's own"),
}
FASTER = 3  # a draft so many times as fast as its target is marked


def plot_overlap(p: Sequence[float], q: Sequence[float], names: Sequence[str]) -> Axes:
    """Why sampling with a draft keeps p: what is accepted, min(p, q), and what the residual adds make p again.

    p, q: probabilities of the tokens `names`, of target and draft, else ValueError; q is drawn as an outline.
    """
    ax, at = axes((WIDTH, 3.0)), range(len(names))
    kept = [min(a, b) for a, b in zip(p, q, strict=True)]
    owed = [a - k for a, k in zip(p, kept, strict=True)]
    ax.bar(at, kept, 0.6, color=COLORS["accepted"], label="min(p, q): drafted and accepted")
    ax.bar(at, owed, 0.6, bottom=kept, color=BLUE, label="(p - q)+: drawn after a rejection")
    ax.bar(at, q, 0.72, facecolor="none", edgecolor=COLORS["rejected"], linewidth=1.6, linestyle="--", label="q")
    ax.set_xticks(at, names)
    ax.set(ylabel="probability", ylim=(0, None))
    ax.legend(title="full height of a bar: p", ncols=2, **ABOVE)
    return ax


def plot_draft_length(rows: Iterable[Any], chosen: int | None = None, ax: Axes | None = None) -> Axes:
    """Speed over plain decoding against the draft length: predicted (dashed), counted, and measured where timed.

    rows: `gamma`, `predicted`, and where known `counted` and `samples` (repeated measurements), all of one quantity,
    which the caller names on the axis; `strayed` where the timed run wrote another text than the counted one (a cross,
    not a dot). chosen: a gamma to mark. ValueError without rows.
    """
    ax, rows = ax or axes(), sorted(as_dicts(rows), key=lambda row: row["gamma"])
    ax.plot(*_points(rows, "predicted"), "--", color=COLORS["predicted"], label="predicted from alpha")
    counted, timed = [[row for row in rows if key in row] for key in ("counted", "samples")]
    same, other = [[row for row in timed if row.get("strayed", False) is strayed] for strayed in (False, True)]
    if counted:
        ax.plot(*_points(counted, "counted"), "s", markersize=5, color=COLORS["draft"], label="from counted forwards")
    if same:
        plot_spread(ax, *_points(same, "samples"))
    if other:
        plot_spread(ax, *_points(other, "samples"), label="measured, another text", fmt="x")
    if chosen is not None:
        ax.axvline(chosen, color=COLORS["accepted"], alpha=0.35, linewidth=6)
    ax.axhline(1, linestyle=":", color=COLORS["limit"])
    ax.set(xlabel="tokens drafted per step (gamma)", ylabel="speed [times plain]", ylim=(0, None))
    ax.legend(ncols=2 if other else 3, **ABOVE)
    return ax


def plot_pays(
    curves: Mapping[str, Sequence[tuple[float, float]]], points: Iterable[tuple[str, float, float]] = ()
) -> Axes:
    """The acceptance from which a draft gains, against how much faster than its target it is; above a line it pays.

    curves: label -> [(c, alpha)]; alpha above 1 is left out: no draft gains there. points: (label, c, alpha) of
    real drafts.
    """
    ax = axes()
    for number, (label, curve) in enumerate(curves.items()):
        known = [(1 / c, alpha) for c, alpha in curve if alpha <= 1]
        speeds, needed = zip(*known, strict=True) if known else ((), ())
        ax.plot(speeds, needed, ("-", "--", ":")[number % 3], color=CYCLE[number], label=label)
    points = sorted(points, key=lambda point: point[2])
    for (label, c, alpha), height in zip(points, apart([alpha for *_, alpha in points], 0.07), strict=True):
        first = (label, c, alpha) == points[0]  # one entry for all in the legend
        ax.plot(1 / c, alpha, "o", color=COLORS["draft"], label="reached by real drafts" if first else None)
        thin = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6}
        ax.annotate(label, (1 / c, alpha), (1.25 / c, height), arrowprops=thin, fontsize=FONT_SIZE, va="center")
    ax.axvline(FASTER, linestyle=":", color=COLORS["limit"])
    ax.set_xscale("log")
    ticks = [1, 2, 3, 5, 10, 20, 50, 100]
    ax.set_xticks(ticks, map(str, ticks))
    ax.minorticks_off()
    ax.set(xlabel="draft forwards in the time of one target forward (1/c)", ylabel="acceptance", ylim=(0, 1))
    ax.legend(ncols=2, **ABOVE)
    return ax


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved up where they are closer than `gap` to the one below, so that labels do not overlap.

    >>> apart([0.5, 0.5, 0.75], 0.25)
    [0.5, 0.75, 1.0]
    """
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    return moved


def plot_distillation(curve: Iterable[Mapping[str, float]]) -> Axes:
    """How often a draft's guess is the target's choice, along its training. curve: rows of `step`, `agree`."""
    ax, rows = axes((WIDTH, 3.0)), list(curve)
    ax.plot([row["step"] for row in rows], [row["agree"] for row in rows], color=COLORS["draft"])
    ax.set(xlabel="training step", ylabel="guesses that are right", ylim=(0, 1))
    return ax


def plot_length_and_text(
    rows: Iterable[Any], gamma: int, pieces: Sequence[tuple[str, str]], title: str = "", columns: int = 84
) -> Figure:
    """plot_draft_length with `gamma` marked, and below it the text as it is written with that gamma.

    pieces: (text, writer), in order, writer one of WRITERS. columns: characters in a line. ValueError for another
    writer, for no text and without rows.
    """
    spans = placed(pieces, columns)
    lines, top = spans[-1][0] + 1, 3.4
    tall = top + LINE * (lines + 2)
    figure = plt.figure(figsize=(WIDTH, tall), facecolor=PAPER)
    above = axes_in(figure, (0.11, 1 - (top - 0.75) / tall, 0.87, (top - 1.35) / tall))
    plot_draft_length(rows, gamma, above).set_title(title, fontsize=11, pad=26)  # points: the legend lies between
    above.set_ylabel("decoding alone [times plain]")
    below = axes_in(figure, (0.01, 0.01, 0.98, LINE * lines / tall))
    draw_spans(below, spans, columns, WRITERS)
    return figure


def placed(pieces: Sequence[tuple[str, str]], columns: int) -> list[Span]:
    """spans_of for writers, errors too; a rejected line end is drawn as an arrow: the text does not break there."""
    shown = [(text.replace("\n", "↵") if who == "rejected" else text, who) for text, who in pieces]
    return spans_of(shown, columns, WRITERS)


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[Any]]:
    return [row["gamma"] for row in rows], [row[key] for row in rows]
