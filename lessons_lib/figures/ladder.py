"""The ladder (lesson 11): what each rung gains, what was predicted, and what is left of the model's quality."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from lessons_lib.figures.rows import as_dicts
from lessons_lib.figures.style import COLORS, CYCLE, GREY, INK, MARKERS, ORANGE, PAPER, SMALL, WIDTH, axes, tint

SHADES = {"gain": COLORS["measured"], "loss": ORANGE, "peer": COLORS["peer"]}
COLUMNS = 54, 92, 146  # points from the axes to the right ends of the numbers beside a bar


def plot_waterfall(rows: Iterable[Any], unit: str = "tokens/s") -> Axes:
    """Rungs from the top down, each bar from the speed of the rung that it stands on to its own, on a log axis.

    rows: `rung`, `speed`, and where known `below` (name of the rung that it stands on; a bar without one begins at
    the axis), `predicted` (a dark tick), `counts` (False: shown, hatched, and not counted) and `peer` (True: another
    engine, which stands on nothing). Equal steps on this axis are equal factors, so that the factors written beside
    the bars add up by length. ValueError without rows.

    The numbers stand in columns right of the axes: at the end of its bar, what was measured would stand beside the
    tick of what was predicted, and be read as that.
    """
    rows = as_dicts(rows)
    speeds = {row["rung"]: row["speed"] for row in rows}
    everything = [*speeds.values(), *(row["predicted"] for row in rows if row.get("predicted"))]
    ax = axes((WIDTH, 1.5 + 0.36 * len(rows)))
    ax.set(xscale="log", xlim=(0.7 * min(everything), 1.1 * max(everything)), xlabel=unit)
    for place, row in enumerate(rows):
        below = speeds.get(row.get("below"))
        _bar(ax, place, row, below or ax.get_xlim()[0])
        told = f"{row['predicted']:.3g}" if row.get("predicted") else ""
        _numbers(ax, place, f"{row['speed']:.3g}", f"×{row['speed'] / below:.2f}" if below else "", told)
    if any(row.get("predicted") for row in rows):
        _numbers(ax, -0.8, "measured", "", "predicted")
    ax.set_yticks(range(len(rows)), [row["rung"] for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    _plain_numbers(ax)
    return _legend(ax, rows)


def _bar(ax: Axes, place: int, row: Mapping[str, Any], start: float) -> None:
    """One rung: its bar and its prediction."""
    kind = "peer" if row.get("peer") else "gain" if row["speed"] >= start else "loss"
    hatched = {"hatch": "////", "edgecolor": PAPER} if row.get("counts") is False else {}
    ax.barh(place, row["speed"] - start, left=start, height=0.62, color=SHADES[kind], **hatched)
    if row.get("predicted"):
        ax.plot([row["predicted"]] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=2)


def _numbers(ax: Axes, place: float, *columns: str) -> None:
    """Right of the axes, at the height of a rung: the speed, the factor over the rung below, the prediction."""
    for right, number in zip(COLUMNS, columns, strict=True):
        if number:
            where = dict(xycoords=ax.get_yaxis_transform(), textcoords="offset points", ha="right", va="center")
            ax.annotate(number, (1, place), (right, 0), fontsize=SMALL, color=INK, annotation_clip=False, **where)


def _plain_numbers(ax: Axes) -> None:
    """10, 20, 50, 100 and so on, as they are."""
    low, high = ax.get_xlim()
    ticks = [m * 10**e for e in range(-1, 6) for m in (1, 2, 5) if low <= m * 10**e <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def _legend(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> Axes:
    """What colours, hatches and lines mean, of those that are there."""
    speeds = {row["rung"]: row["speed"] for row in rows}
    lost = any(row["speed"] < speeds.get(row.get("below"), 0) for row in rows)
    handles = [Patch(color=SHADES["gain"], label="gain on the rung below")]
    handles += [Patch(color=SHADES["loss"], label="loss")] * lost
    if any(row.get("counts") is False for row in rows):
        handles.append(Patch(facecolor=GREY, edgecolor=PAPER, hatch="////", label="does not count: perplexity"))
    handles += [Patch(color=SHADES["peer"], label="another engine")] * any(row.get("peer") for row in rows)
    if any(row.get("predicted") for row in rows):
        handles += ax.plot([], [], "|", color=INK, markersize=12, markeredgewidth=2, label="predicted")
    ax.figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return ax


def plot_quality(rows: Iterable[Any], tolerated: float) -> Axes:
    """Speed against what it costs: perplexity over the reference's, in percent.

    rows: `rung`, `speed` [tokens/s], `loss` (0.01: one percent more perplexity) and `bytes` that are held, which is
    the area of the dot. Right of `tolerated` (as loss) nothing counts. ValueError without rows.
    """
    rows = as_dicts(rows)
    ax, most = axes(), max(row["bytes"] for row in rows)
    worst, level = max(100 * tolerated, *(100 * row["loss"] for row in rows)), max(row["speed"] for row in rows) / 20
    ax.axvspan(100 * tolerated, 2 * worst, color=tint(ORANGE), zorder=0)
    for row in rows:
        shade = COLORS["measured"] if row["loss"] <= tolerated else ORANGE
        ax.scatter(100 * row["loss"], row["speed"], 30 + 500 * row["bytes"] / most, color=shade, alpha=0.7)
        ahead = [100 * (other["loss"] - row["loss"]) for other in rows if abs(other["speed"] - row["speed"]) < level]
        taken = any(0 < far < worst / 3 for far in ahead)  # by a dot where the name would stand: it goes below its own
        where = dict(xytext=(0, -14), ha="center", va="top") if taken else dict(xytext=(14, 0), va="center")
        where |= dict(textcoords="offset points", fontsize=9, color=INK)  # the largest dot's radius is 13 points
        ax.annotate(row["rung"], (100 * row["loss"], row["speed"]), **where)
    said = f"area: bytes held, {min(row['bytes'] for row in rows) / 1e6:,.0f} to {most / 1e6:,.0f} MB"
    ax.set_title(said, fontsize=9, loc="right")
    left = min(0.0, *(100 * row["loss"] for row in rows))
    ax.set(xlabel="perplexity above the reference [%]", ylabel="tokens/s, plain decoding")
    ax.set(xlim=(left - 0.15 * worst, 1.5 * worst), ylim=(0, 1.25 * max(row["speed"] for row in rows)))
    return ax


def plot_published(ladders: Mapping[str, Sequence[tuple[str, float]]]) -> Axes:
    """Ladders from elsewhere beside ours: times the first rung, step by step, on a log axis.

    ladders: label -> (rung, speed) in order, at least one, else ValueError. The rungs' names stand at their dots, once
    where ladders share a step, the first one's in the legend.
    """
    ax, dots = axes((WIDTH, 4.2)), {}
    for style, shade, (label, rungs) in zip(MARKERS, CYCLE, ladders.items(), strict=False):
        (first, slowest), *others = rungs
        times = [speed / slowest for _, speed in rungs]
        ax.plot(range(len(rungs)), times, f"{style}-", color=shade, label=f"{label}; 1 is {first}")
        for at, ((name, _), value) in enumerate(zip(others, times[1:], strict=True), 1):
            dots.setdefault(at, {}).setdefault(name, []).append((value, shade))
    for at, names in dots.items():
        highest = max(value for found in names.values() for value, _ in found)
        for name, found in names.items():
            _name_dot(ax, name, at, found, highest, last=at == max(dots))
    ax.set(yscale="log", xlabel="steps up the ladder", ylabel="times the first rung")
    ax.set_xticks(range(max(map(len, ladders.values()))))
    _, high = ax.get_ylim()
    ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50) if tick <= high]
    ax.set_yticks(ticks, [f"{tick}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=9)
    return ax


def _name_dot(ax: Axes, name: str, at: int, found: Sequence[tuple[float, str]], highest: float, last: bool) -> None:
    """A rung's name, left above the step's highest dot if that is its, else right below its lowest: lines rise.

    At the last step no line goes on, and a lower name stands beside its dot, away from the next one's.
    """
    (low, below), (high, above) = min(found), max(found)
    top = high == highest
    value, shade, aside, side = (
        (high, above, (-5, 6), "right") if top else (low, below, (8, -3) if last else (4, -13), "left")
    )
    ax.annotate(name, (at, value), aside, textcoords="offset points", fontsize=9, color=shade, ha=side)
