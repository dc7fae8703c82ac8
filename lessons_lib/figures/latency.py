"""Where the time of a request and of a decode step goes (lessons 00, 01, 03, 06), and when compiling pays (03)."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.rows import as_dicts
from lessons_lib.figures.style import COLORS, INK, LIFTED, PAPER, WIDTH, axes, color
from lessons_lib.measure.crossing import break_even_tokens

LABEL_SHARE = 0.09  # of the axis: a part of a bar that fills at least this much carries its number


def plot_parts(bars: Mapping[str, Mapping[str, float]], unit: str, limit: float = 0.0) -> Axes:
    """Stacked bars, one a row: label -> {part: value}; each part has its colour in style.COLORS.

    A bar's total stands at its end, in `unit`; parts wide enough carry their own number. limit: drawn dotted.
    ValueError without bars, KeyError for a part without a colour.
    """
    if not bars:
        raise ValueError("nothing to draw: pass at least one bar")
    ax = axes((WIDTH, 1.3 + 0.5 * len(bars)))
    longest = max(limit, *(sum(parts.values()) for parts in bars.values()))
    if limit:
        ax.axvline(limit, linestyle=":", color=COLORS["limit"])
    for label, parts in bars.items():
        _bar(ax, label, parts, longest)
    ax.set(xlabel=unit, xlim=(0, 1.14 * longest))
    return _finished(ax, next(iter(bars)), {name: color(name) for parts in bars.values() for name in parts})


def _finished(ax: Axes, first: str, shades: Mapping[str, str]) -> Axes:
    """Bars from the top, `first` among them, below a legend of {what a colour means: colour}."""
    handles = [ax.barh(first, 0, color=shade, label=name) for name, shade in shades.items()]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(4, len(handles)))
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()
    return ax


def _bar(ax: Axes, label: str, parts: Mapping[str, float], longest: float) -> None:
    """One stacked bar with its numbers."""
    left = 0.0
    for name, value in parts.items():
        ax.barh(label, value, left=left, color=color(name), height=0.7)
        if value >= LABEL_SHARE * longest:
            ax.text(left + value / 2, label, f"{value:.3g}", color=PAPER, ha="center", va="center")
        left += value
    ax.text(left + 0.01 * longest, label, f"{left:.3g}", color=INK, va="center", bbox=LIFTED)


def plot_timeline(requests: Mapping[str, Any]) -> Axes:
    """When each token of a request arrived: the wait for the first (TTFT), then every gap between two (ITL).

    requests: label -> measure.timeline.Timeline (`ttft` and `itl` in seconds), at least one.
    """
    ax = axes((WIDTH, 1.4 + 0.5 * len(requests)))
    for label, timeline in requests.items():
        ax.barh(label, timeline.ttft, color=COLORS["prefill"], height=0.6)
        at = timeline.ttft
        for gap in timeline.itl:
            ax.barh(label, gap, left=at, color=COLORS["decode"], height=0.6, edgecolor=PAPER, linewidth=0.5)
            at += gap
    ax.set(xlabel="seconds since the request was handed in")
    shades = {"until the first token (TTFT)": COLORS["prefill"], "between two tokens (ITL)": COLORS["decode"]}
    return _finished(ax, next(iter(requests)), shades)


def plot_break_even(rows: Iterable[Any], tokens: int) -> Axes:
    """Total time against the number of new tokens, where starting costs something: compiling, most of all.

    rows: `method`, `startup` and `per_token` in seconds; the first is what the others are compared with, and
    the token from which on another one is faster is marked. tokens: how far to draw. ValueError without rows,
    KeyError for a method without a colour.
    """
    ax = axes()
    first, *others = as_dicts(rows)
    for row in (first, *others):
        ends = [row["startup"], row["startup"] + tokens * row["per_token"]]
        ax.plot([0, tokens], ends, color=color(row["method"]), label=row["method"])
    starts = [row["startup"] - first["startup"] for row in others]
    meet = [
        break_even_tokens(start, first["per_token"], row["per_token"])
        for start, row in zip(starts, others, strict=True)
    ]
    crossings = sorted(at for at in meet if 0 < at <= tokens)
    for at in crossings:
        aside = at < crossings[-1] and at > 0.2 * tokens  # the next number stands to the right of the next dot
        _mark_crossing(ax, at, first["startup"] + at * first["per_token"], left=aside or at > 0.7 * tokens)
    ax.set(xlabel="new tokens", ylabel="total time [s]", xlim=(0, tokens), ylim=(0, None))
    ax.legend(loc="upper left")
    return ax


def _mark_crossing(ax: Axes, tokens: float, seconds: float, left: bool) -> None:
    """A dot where two lines cross, and its number of tokens beside it."""
    ax.plot([tokens], [seconds], "o", color=INK, zorder=3)
    ax.plot([tokens, tokens], [0, seconds], ":", color=INK)
    note = f"{tokens:,.0f} tokens"
    shift, align = ((-8, 4), "right") if left else ((8, -14), "left")
    ax.annotate(note, (tokens, seconds), shift, textcoords="offset points", color=INK, ha=align, bbox=LIFTED)
