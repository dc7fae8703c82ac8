"""Serving many requests (lesson 05): who had which slot in which iteration, load and latency, memory, tails."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import (
    ABOVE,
    BLUE,
    CYCLE,
    GREY,
    INK,
    MARKERS,
    PALE,
    PAPER,
    SMALL,
    WIDTH,
    axes,
    axes_in,
    color,
    look,
    plain_numbers,
)
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.request import Log

STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))  # lines differ in style as well as in colour


def slot_cells(log: Log) -> list[tuple[int, int, int | str, str]]:
    """(slot, iteration, request id, "prefill" | "decode" | "idle") of every slot that worked or was held.

    idle: held by a request that has finished, until its static batch ends.
    """
    cells = []
    for number, step in enumerate(log.iterations):
        cells += [(share.slot, number, share.id, "prefill" if share.prefill else "decode") for share in step.shares]
        cells += [(slot, number, id, "idle") for slot, id in step.idle]
    return cells


def plot_slots(log: Log, until: int | None = None, ax: Axes | None = None) -> Axes:
    """A row per slot, a column per iteration: which request worked there, hatched while it fed its prompt.

    until: draw only so many iterations, keeping the room of all. Grey crosses: held by a finished request; white: free,
    or its request waits for a prompt of others.
    """
    ax = ax or axes((WIDTH, 0.9 + 0.3 * log.slots))
    shades, seen = {}, set()
    for slot, column, id, doing in slot_cells(log):
        shade = shades.setdefault(id, CYCLE[len(shades) % len(CYCLE)])
        if until is not None and column >= until:
            continue
        _cell(ax, slot, column, doing, shade)
        if id not in seen and doing != "idle":
            seen.add(id)
            size = _fitting(ax, len(log.iterations), f"{id}")
            ax.text(column + 0.5, slot + 0.5, f"{id}", ha="center", va="center", fontsize=size, color=INK)
    ax.set(xlim=(0, len(log.iterations)), ylim=(log.slots, 0), xlabel="iteration", ylabel="slot")
    ax.set_yticks([slot + 0.5 for slot in range(log.slots)], [str(slot + 1) for slot in range(log.slots)])
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(False)
    return ax


def _fitting(ax: Axes, columns: int, text: str) -> float:
    """The font size, from 6 to 9, at which a text is as wide as one of so many columns."""
    column = 72 * ax.figure.get_figwidth() * ax.get_position().width / columns  # points
    return min(9, max(6, column / (0.62 * len(text))))


def _cell(ax: Axes, slot: int, column: int, doing: str, shade: str) -> None:
    looks = {
        "prefill": {"facecolor": shade, "hatch": "////", "alpha": 0.6},
        "decode": {"facecolor": shade, "alpha": 0.6},
        "idle": {"facecolor": PALE, "hatch": "xxxx", "alpha": 1.0},
    }
    ax.add_patch(Rectangle((column, slot), 1, 1, edgecolor=PAPER, linewidth=0.8, **looks[doing]))


def plot_slot_charts(logs: Mapping[str, Log]) -> Figure:
    """Slot charts one below the other on one scale of iterations, each with how many it took and wasted.

    ValueError without logs.
    """
    longest = max(len(log.iterations) for log in logs.values())
    heights = [0.8 + 0.3 * log.slots for log in logs.values()]
    tall, top = sum(heights) + 0.45, 0.0
    figure = plt.figure(figsize=(WIDTH, tall), facecolor=PAPER)
    for (name, log), height in zip(logs.items(), heights, strict=True):
        place = (0.08, 1 - (top + height - 0.45) / tall, 0.9, (height - 0.8) / tall)
        ax = plot_slots(log, ax=axes_in(figure, place))
        ax.set_xlim(0, longest)
        ax.set_title(f"{name}: {len(log.iterations)} iterations, {usage(log).wasted_slots} slots wasted", fontsize=11)
        top += height
    return _with_key(figure)


def _with_key(figure: Figure) -> Figure:
    """With a legend of what slots do, at the bottom."""
    kinds = {"hatch": "////", "label": "feeds its prompt"}, {"label": "decodes"}, {"hatch": "xxxx", "label": "held"}
    shades = GREY, GREY, PALE
    handles = [Patch(facecolor=shade, edgecolor=PAPER, **kind) for shade, kind in zip(shades, kinds, strict=True)]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=SMALL)
    return figure


def plot_load(
    rows: Iterable[Any], y: str, limit: float | None = None, capacity: Mapping[str, float] | None = None
) -> Axes:
    """Latency against load, a line per policy, on a logarithmic scale: flat, then the wall.

    rows: `policy`, `rate` (requests/s), and seconds under `y`. limit: the service level (dotted); capacity:
    policy -> predicted rate at which its queue starts to grow (vertical, dashed). ValueError without rows, KeyError for
    a policy without a colour.
    """
    ax, rows = axes((WIDTH, 3.8)), as_dicts(rows)
    for (policy, group), marker in zip(by_key(rows, "policy").items(), cycle(MARKERS), strict=False):
        group, shade = sorted(group, key=lambda row: row["rate"]), color(policy)
        at = [r["rate"] for r in group]
        ax.plot(at, [r[y] for r in group], marker=marker, markersize=4, color=shade, label=policy)
        if capacity and policy in capacity:
            ax.axvline(capacity[policy], linestyle="--", color=shade, alpha=0.7)
    if limit is not None:
        ax.axhline(limit, linestyle=":", color=INK, label="service level")
    ax.set(xscale="log", yscale="log", xlabel="requests per second", ylabel=y)
    ticks: list[float] = []
    for rate in sorted({row["rate"] for row in rows}):
        ticks += [rate] if not ticks or rate >= 1.25 * ticks[-1] else []  # closer ones would overlap
    ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    plain_numbers(ax.yaxis)
    ax.minorticks_off()
    ax.legend(title="dashed: capacity predicted" if capacity else None, ncols=2, **ABOVE)
    return ax


def plot_memory(logs: Mapping[str, Log]) -> Figure:
    """How full the KV memory is over time: blocks that requests own, and the tokens that really lie in them.

    logs: name -> log of at least one iteration, drawn side by side in shares of the pool; ZeroDivisionError without
    logs.
    """
    figure = plt.figure(figsize=(WIDTH, 2.9), facecolor=PAPER)
    wide, longest = 0.9 / len(logs), max(log.iterations[-1].end for log in logs.values())
    for number, (name, log) in enumerate(logs.items()):
        ax = axes_in(figure, (0.09 + number * wide, 0.2, wide - 0.05, 0.58))
        room = log.num_blocks * log.block_size
        at = [step.end for step in log.iterations]
        owned = [step.used_blocks / log.num_blocks for step in log.iterations]
        ax.fill_between(at, owned, color=PALE, step="pre", linewidth=0, label="blocks owned")
        filled = [step.cached_tokens / room for step in log.iterations]
        ax.fill_between(at, filled, color=BLUE, alpha=0.7, step="pre", linewidth=0, label="tokens in them")
        ax.set(xlim=(0, longest), ylim=(0, 1.02), xlabel="seconds")
        ax.set_title(name, fontsize=10)
        ax.tick_params(labelleft=number == 0)
    figure.axes[0].set_ylabel("share of the KV memory")
    shown = figure.axes[0].get_legend_handles_labels()
    figure.legend(*shown, loc="upper center", ncols=2, frameon=False, fontsize=SMALL)
    return figure


def plot_tails(gaps: Mapping[str, Sequence[float]]) -> Axes:
    """The share of gaps longer than x, a line per policy: tails that a median hides. gaps: name -> values in ms.

    ValueError without gaps.
    """
    ax = axes()
    for number, (name, values) in enumerate(gaps.items()):
        values = sorted(values)
        longer = [1 - i / len(values) for i in range(len(values))]
        line = {"linestyle": STYLES[number % len(STYLES)], "color": CYCLE[number % len(CYCLE)]}
        ax.step(values, longer, where="pre", label=name, **line)
    said = "gap between two tokens of a request [ms]"
    ax.set(xscale="log", yscale="log", xlabel=said, ylabel="share as long or longer")
    ticks = [10, 20, 50, 100, 200, 500, 1000]
    shown = [tick for tick in ticks if min(map(min, gaps.values())) * 0.6 <= tick <= max(map(max, gaps.values())) * 1.7]
    ax.set_xticks(shown, map(str, shown))
    plain_numbers(ax.yaxis)
    ax.minorticks_off()
    ax.legend(ncols=3, **ABOVE)
    return ax


def plot_progress(served: Mapping[str, Sequence[Any]], simulated: Mapping[str, Sequence[Any]] | None = None) -> Axes:
    """Tokens emitted so far against time, of whole runs: the slope is the throughput, the flat end is a batch's tail.

    served: name -> requests with `times`, solid; simulated: the same names, dashed in the same colour. KeyError for a
    name without one.
    """
    ax = axes()
    for name, requests in served.items():
        shade = color(name)
        ax.plot(*_progress(requests), color=shade, label=name)
        if name in (simulated or {}):
            ax.plot(*_progress(simulated[name]), "--", color=shade)
    ax.set(xlabel="seconds", ylabel="tokens emitted, all requests", xlim=(0, None), ylim=(0, None))
    ax.legend(title="dashed: simulated" if simulated else None, loc="lower right")
    return ax


def _progress(requests: Sequence[Any]) -> tuple[list[float], list[int]]:
    """(times, tokens so far) of all requests together."""
    times = sorted(time for request in requests for time in request.times)
    return [0.0, *times], list(accumulate([0] + [1] * len(times)))


def plot_gains(rows: Iterable[Any]) -> Axes:
    """How many times the naive static throughput each system reaches, by the longest output, with what was published.

    rows: `longest`, `system`, `gain`, and `published_gain` where one is known (a cross). ValueError without rows.
    """
    ax, marked = axes((WIDTH, 3.8)), []
    for number, (system, group) in enumerate(by_key(as_dicts(rows), "system").items()):
        at, (shade, marker) = range(len(group)), look(number)
        ax.plot(at, [row["gain"] for row in group], marker=marker, markersize=4, color=shade, label=system)
        known = [(i, row["published_gain"]) for i, row in enumerate(group) if row["published_gain"] is not None]
        marked += [ax.plot(*point, "x", markersize=9, markeredgewidth=2, color=shade) for point in known]
        ax.set_xticks(at, [str(row["longest"]) for row in group])
    ax.set(xlabel="longest output M [tokens]", ylabel="times the naive static throughput", yscale="log")
    ticks = [1, 2, 4, 8, 16, 32]
    ax.set_yticks(ticks, map(str, ticks))
    ax.minorticks_off()
    ax.legend(title="crosses: published" if marked else None, **ABOVE)
    return ax


def plot_timeline_of_slots(log: Log, until: int, title: str = "") -> Figure:
    """The slot chart up to an iteration, and below it the requests that wait in each."""
    slots, queue = 0.35 + 0.3 * log.slots, 0.9
    tall = slots + queue + 1.35
    figure = plt.figure(figsize=(WIDTH, tall), facecolor=PAPER)
    above = axes_in(figure, (0.1, (queue + 1.05) / tall, 0.88, (slots - 0.1) / tall))
    plot_slots(log, until, above).set(xlabel="", xticklabels=())
    above.set_title(title, fontsize=11)
    below = axes_in(figure, (0.1, 0.8 / tall, 0.88, queue / tall))
    waiting = [step.waiting for step in log.iterations]
    below.bar([i + 0.5 for i in range(until)], waiting[:until], width=0.9, color=GREY)
    below.set(xlim=(0, len(waiting)), ylim=(0, max(1, *waiting)), xlabel="iteration", ylabel="waiting")
    for ax in (above, below):
        ax.axvline(until, color=INK, linestyle=":")
    for axis in (above.xaxis, below.xaxis, below.yaxis):
        axis.get_major_locator().set_params(integer=True)
    return _with_key(figure)
