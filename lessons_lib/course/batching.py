"""Figures of the serving study (05x): load and latency, memory, tails, published gains."""

from collections.abc import Iterable, Mapping
from itertools import cycle

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.course.figures import (
    ABOVE,
    BLUE,
    COLORS,
    CYCLE,
    FONT_SIZE,
    INK,
    MARKERS,
    PALE,
    SMALL,
    WIDTH,
    Row,
    axes,
    grouped,
    look,
    plain_numbers,
)
from lessons_lib.serving.loop import Log


def plot_load(rows: Iterable[Row], y: str, limit: float, highest: Mapping[str, float], title: str) -> Axes:
    """Latency against load, a line per policy, log scale: flat at first, then very steep.

    title: what the figure shows. rows: `policy`, `rate` (requests/s), and seconds under `y`. limit: the service level
    (dotted). highest: policy -> predicted rate above which its queue grows (dashed).
    """
    ax, rows = axes((WIDTH, 3.8)), sorted(rows, key=lambda row: row["rate"])
    for (policy, group), marker in zip(grouped(rows, "policy").items(), cycle(MARKERS), strict=False):
        at, color = [row["rate"] for row in group], COLORS[policy]
        ax.plot(at, [row[y] for row in group], marker=marker, markersize=4, color=color, label=policy)
        if policy in highest:
            ax.axvline(highest[policy], linestyle="--", color=color, alpha=0.7)
    ax.axhline(limit, linestyle=":", color=INK, label="service level")
    ax.set(xscale="log", yscale="log", xlabel="requests per second", ylabel=y)
    ticks: list[float] = []
    for row in rows:
        ticks += [row["rate"]] if not ticks or row["rate"] >= 1.25 * ticks[-1] else []  # closer ones would overlap
    ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    plain_numbers(ax.yaxis)
    ax.minorticks_off()
    ax.legend(title="dashed: highest rate predicted", ncols=2, **ABOVE)
    ax.figure.suptitle(title, fontsize=FONT_SIZE)
    return ax


def plot_memory(logs: Mapping[str, Log], title: str) -> Figure:
    """Use of the KV memory over time: blocks allocated to requests, and the tokens actually stored in them."""
    figure = plt.figure(figsize=(WIDTH, 3.2))
    wide, longest = 0.9 / len(logs), max(log.iterations[-1].end for log in logs.values())
    for number, (name, log) in enumerate(logs.items()):
        ax = figure.add_axes((0.09 + number * wide, 0.18, wide - 0.05, 0.54))
        at, room = [step.end for step in log.iterations], log.num_blocks * log.block_size
        owned = [step.used_blocks / log.num_blocks for step in log.iterations]
        ax.fill_between(at, owned, color=PALE, step="pre", linewidth=0, label="blocks owned")
        filled = [step.cached_tokens / room for step in log.iterations]
        ax.fill_between(at, filled, color=BLUE, alpha=0.7, step="pre", linewidth=0, label="tokens in them")
        ax.set(xlim=(0, longest), ylim=(0, 1.02), xlabel="seconds")
        ax.set_title(name, fontsize=SMALL)
        ax.tick_params(labelleft=number == 0)
    figure.axes[0].set_ylabel("share of the KV memory")
    shown = figure.axes[0].get_legend_handles_labels()
    figure.legend(*shown, loc="upper center", bbox_to_anchor=(0.5, 0.93), ncols=2, frameon=False, fontsize=SMALL)
    figure.suptitle(title, fontsize=FONT_SIZE)
    return figure


def plot_tails(gaps: Mapping[str, list[float]], title: str) -> Axes:
    """Share of inter-token gaps longer than x, a line per policy; shows tails that a median hides. gaps: in ms."""
    ax, styles = axes(), ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
    for (name, values), color, style in zip(gaps.items(), cycle(CYCLE), cycle(styles), strict=False):
        longer = [1 - i / len(values) for i in range(len(values))]
        ax.step(sorted(values), longer, where="pre", label=name, linestyle=style, color=color)
    said = "gap between two tokens of a request [ms]"
    ax.set(xscale="log", yscale="log", xlabel=said, ylabel="share as long or longer")
    low, high = min(map(min, gaps.values())), max(map(max, gaps.values()))
    ticks = [tick for tick in (10, 20, 50, 100, 200, 500, 1000) if low * 0.6 <= tick <= high * 1.7]
    ax.set_xticks(ticks, map(str, ticks))
    plain_numbers(ax.yaxis)
    ax.minorticks_off()
    ax.legend(ncols=3, **ABOVE)
    ax.figure.suptitle(title, fontsize=FONT_SIZE)
    return ax


def plot_batching_gains(rows: Iterable[Row], title: str) -> Axes:
    """Throughput of each system over naive static batching, by the longest output, with published values.

    rows: `longest`, `system`, `gain`, and `published_gain` (a cross) or None.
    """
    ax, key = axes((WIDTH, 5)), None
    for number, (system, group) in enumerate(grouped(rows, "system").items()):
        at, (color, marker) = range(len(group)), look(number)
        ax.plot(at, [row["gain"] for row in group], marker=marker, markersize=4, color=color, label=system)
        ax.set_xticks(at, [str(row["longest"]) for row in group])
        for place, row in enumerate(group):
            if row["published_gain"] is not None:
                ax.plot(place, row["published_gain"], "x", markersize=9, markeredgewidth=2, color=color)
                key = "crosses: published"
    ax.set(xlabel="longest output M [tokens]", ylabel="times naive static batching", yscale="log")
    ticks = [1, 2, 4, 8, 16, 32]
    ax.set_yticks(ticks, map(str, ticks))
    ax.minorticks_off()
    ax.figure.legend(title=key, loc="outside lower center", fontsize=SMALL)
    ax.set_title(title, fontsize=FONT_SIZE)
    return ax
