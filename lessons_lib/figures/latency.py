"""Where the time of a request and of a decode step goes (lessons 01 and 03), and when compiling pays (03)."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.rows import as_dicts
from lessons_lib.figures.style import COLORS, INK, PAPER, WIDTH, axes, color

LABEL_SHARE = 0.09  # of the axis: a part of a bar that fills at least this much carries its number
LIFTED = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}  # behind a number that may meet a line


def plot_parts(bars: Mapping[str, Mapping[str, float]], unit: str, limit: float = 0.0, ax: Axes | None = None) -> Axes:
    """Stacked bars, one a row: label -> {part: value}; each part has its colour in style.COLORS.

    A bar's total stands at its end, in `unit`; parts wide enough carry their own number. limit: drawn dotted.
    """
    if not bars:
        raise ValueError("nothing to draw: pass at least one bar")
    ax = ax or axes((WIDTH, 1.3 + 0.5 * len(bars)))
    longest = max(limit, *(sum(parts.values()) for parts in bars.values()))
    if limit:
        ax.axvline(limit, linestyle=":", color=COLORS["limit"])
    for label, parts in bars.items():
        _bar(ax, label, parts, longest)
    names = dict.fromkeys(name for parts in bars.values() for name in parts)
    handles = [ax.barh(next(iter(bars)), 0, color=color(name), label=name) for name in names]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(4, len(names)))
    ax.grid(axis="y", visible=False)
    ax.set(xlabel=unit, xlim=(0, 1.14 * longest))
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


def plot_step_parts(rows: Iterable[Any], ax: Axes | None = None) -> Axes:
    """A decode step taken apart. rows: `method` and `parts`, {"matrix products": ms, ...}."""
    return plot_parts({row["method"]: row["parts"] for row in as_dicts(rows)}, "ms per decode step", ax=ax)


def plot_latency_parts(rows: Iterable[Any], ax: Axes | None = None) -> Axes:
    """A request's time: prefill (until the first token), then decode.

    rows: `prompt` and `output` in tokens, `prefill` and `decode` in seconds, and where wanted a `label`.
    """
    bars = {}
    for row in as_dicts(rows):
        label = row.get("label") or f"{row['prompt']} in, {row['output']} out"
        bars[label] = {"prefill": row["prefill"], "decode": row["decode"]}
    return plot_parts(bars, "seconds per request", ax=ax)


def plot_timeline(requests: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """When each token of a request arrived: the wait for the first (TTFT), then every gap between two (ITL).

    requests: label -> measure.Timeline (`ttft` and `itl` in seconds).
    """
    ax = ax or axes((WIDTH, 1.4 + 0.5 * len(requests)))
    for label, timeline in requests.items():
        ax.barh(label, timeline.ttft, color=COLORS["prefill"], height=0.6)
        at = timeline.ttft
        for gap in timeline.itl:
            ax.barh(label, gap, left=at, color=COLORS["decode"], height=0.6, edgecolor=PAPER, linewidth=0.5)
            at += gap
    first = next(iter(requests))
    handles = [
        ax.barh(first, 0, color=COLORS["prefill"], label="until the first token (TTFT)"),
        ax.barh(first, 0, color=COLORS["decode"], label="between two tokens (ITL)"),
    ]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="seconds since the request was handed in")
    ax.invert_yaxis()
    return ax


def plot_break_even(rows: Iterable[Any], tokens: int, ax: Axes | None = None) -> Axes:
    """Total time against the number of new tokens, where starting costs something: compiling, most of all.

    rows: `method`, `startup` and `per_token` in seconds; the first is what the others are compared with, and
    the token from which on another one is faster is marked. tokens: how far to draw.
    """
    ax = ax or axes()
    first, *others = as_dicts(rows)
    for row in (first, *others):
        ends = [row["startup"], row["startup"] + tokens * row["per_token"]]
        ax.plot([0, tokens], ends, color=color(row["method"]), label=row["method"])
    crossings = sorted(at for row in others if (at := _crossing(first, row)) is not None and at <= tokens)
    for at in crossings:
        aside = at < crossings[-1] and at > 0.2 * tokens  # the next number stands to the right of the next dot
        _mark_crossing(ax, at, first["startup"] + at * first["per_token"], left=aside or at > 0.7 * tokens)
    ax.set(xlabel="new tokens", ylabel="total time [s]", xlim=(0, tokens), ylim=(0, None))
    ax.legend(loc="upper left")
    return ax


def _crossing(first: Mapping[str, float], other: Mapping[str, float]) -> float | None:
    """Tokens from which on `other` is ahead of `first`; None when it is never, or always."""
    startup, gain = other["startup"] - first["startup"], first["per_token"] - other["per_token"]
    return startup / gain if startup > 0 and gain > 0 else None


def _mark_crossing(ax: Axes, tokens: float, seconds: float, left: bool) -> None:
    """A dot where two lines cross, and its number of tokens beside it."""
    ax.plot([tokens], [seconds], "o", color=INK, zorder=3)
    ax.plot([tokens, tokens], [0, seconds], ":", color=INK)
    note = f"{tokens:,.0f} tokens"
    shift, align = ((-8, 4), "right") if left else ((8, -14), "left")
    ax.annotate(note, (tokens, seconds), shift, textcoords="offset points", color=INK, ha=align)
