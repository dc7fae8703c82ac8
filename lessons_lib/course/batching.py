"""Figures and widget of the serving study (05x): slots, load and latency, memory, tails, published gains."""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import cycle

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lessons_lib.course.figures import (
    ABOVE,
    BLUE,
    COLORS,
    CYCLE,
    FONT_SIZE,
    GREY,
    INK,
    MARKERS,
    PALE,
    PAPER,
    SMALL,
    WIDTH,
    Row,
    axes,
    grouped,
    look,
    plain_numbers,
)
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import Log
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, ShortestFirst, Static
from lessons_lib.serving.simulator import simulate
from lessons_lib.serving.workload import AtOnce, Exponential, Fixed, Lengths, Poisson, Uniform, Workload

SLOT_LOOKS = {"prefill": dict(hatch="////", alpha=0.6), "decode": dict(alpha=0.6), "idle": dict(hatch="xxxx")}


def slot_cells(log: Log) -> list[tuple[int, int, int | str, str]]:
    """(slot, iteration, request id, "prefill" | "decode" | "idle") of every slot in use.

    idle: held by a finished request until its static batch ends.
    """
    cells = []
    for number, step in enumerate(log.iterations):
        cells += [(share.slot, number, share.id, "prefill" if share.prefill else "decode") for share in step.shares]
        cells += [(slot, number, id, "idle") for slot, id in step.idle]
    return cells


def plot_slots(log: Log, ax: Axes, until: int | None = None) -> Axes:
    """Chart of slots (rows) over passes (columns), coloured by request; hatched during prefill.

    until: draw only this many passes, on the axis of all. Crosses: held by a finished request.
    """
    colors, spans, columns = {}, {}, len(log.iterations)  # spans: request -> its slot, first and last column there
    points = 72 * ax.figure.get_figwidth() * ax.get_position().width / columns  # in units of a column
    for slot, column, id, doing in slot_cells(log):
        color = colors.setdefault(id, CYCLE[len(colors) % len(CYCLE)])
        if until is not None and column >= until:
            continue
        color = PALE if doing == "idle" else color
        cell = Rectangle((column, slot), 1, 1, facecolor=color, edgecolor=PAPER, linewidth=0.8, **SLOT_LOOKS[doing])
        ax.add_patch(cell)
        if doing != "idle":
            at, first, _ = spans.get(id, (slot, column, column))
            spans[id] = (slot, first, column) if at == slot else spans[id]
    for id, (slot, first, last) in spans.items():
        size = min(9, max(6, points * (last + 1 - first) / (0.62 * len(f"{id}"))))
        ax.text((first + last + 1) / 2, slot + 0.5, f"{id}", ha="center", va="center", fontsize=size, color=INK)
    ax.set(xlim=(0, columns), ylim=(log.slots, 0), xlabel="pass", ylabel="slot")
    ax.set_yticks([slot + 0.5 for slot in range(log.slots)], [str(slot + 1) for slot in range(log.slots)])
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(False)
    return ax


def with_slot_legend(figure: Figure) -> Figure:
    """Add the legend of slot charts at the bottom of a figure."""
    kinds = (GREY, "////", "feeds its prompt"), (GREY, None, "decodes"), (PALE, "xxxx", "held")
    handles = [Patch(facecolor=color, edgecolor=PAPER, hatch=hatch, label=label) for color, hatch, label in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=SMALL)
    return figure


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


REQUESTS, MEAN = 16, 8  # requests in the widget: few enough to follow each one
SPREADS: dict[str, Lengths] = {
    "all equal": Fixed(MEAN), "uniform": Uniform(1, 2 * MEAN - 1), "exponential": Exponential(MEAN, 5 * MEAN),
}  # fmt: skip
POLICIES = {
    "static": Static, "dynamic": lambda: Dynamic(window=4), "continuous": Continuous, "shortest first": ShortestFirst,
}  # fmt: skip
SLOTS = (1, 2, 4, 8)
LOADS = ("at once", "0.25", "0.5", "1")  # requests per pass
STEPS = (*range(1, 25), *range(27, 64, 3), *range(70, 161, 10))


@cache
def run(slots: int, load: str, spread: str, policy: str) -> Log:
    """Schedule sixteen requests. A forward pass takes 1 whatever its load, so times are passes."""
    arrivals = AtOnce() if load == "at once" else Poisson(float(load))
    requests = Workload(REQUESTS, Fixed(4), SPREADS[spread], arrivals).requests()
    for request in requests:
        request.id += 1  # counted from 1, like slots and passes
    return simulate(requests, Scheduler(BlockPool(10_000), slots, POLICIES[policy]()), LinearCost(step=1.0))


def draw_batching(slots: int, load: str, spread: str, policy: str, step: int) -> tuple[Figure, str]:
    """The slot chart up to a pass, and below it the number of waiting requests."""
    log = run(slots, load, spread, policy)
    step, used = min(step, len(log.iterations)), usage(log)
    said = f"{used.iterations} passes, {used.occupancy:.0%} of the slot-iterations used"
    high, queue = 0.35 + 0.3 * log.slots, 0.9  # heights of chart and queue in inches
    tall = high + queue + 1.35
    figure = plt.figure(figsize=(WIDTH, tall))
    longest = max(len(run(slots, load, spread, other).iterations) for other in POLICIES)  # one axis for all policies
    above = figure.add_axes((0.1, (queue + 1.05) / tall, 0.88, (high - 0.1) / tall))
    plot_slots(log, above, step).set(xlim=(0, longest), xlabel="", xticklabels=())
    above.set_title(f"{policy}: {said}", fontsize=11)
    below = figure.add_axes((0.1, 0.8 / tall, 0.88, queue / tall))
    waiting = [iteration.waiting for iteration in log.iterations]
    below.bar([i + 0.5 for i in range(step)], waiting[:step], width=0.9, color=GREY)
    below.set(xlim=(0, longest), ylim=(0, max(1, *waiting)), xlabel="pass", ylabel="waiting")
    for ax in (above, below):
        ax.axvline(step, color=INK, linestyle=":")
        ax.xaxis.get_major_locator().set_params(integer=True)
    below.yaxis.get_major_locator().set_params(integer=True)
    now = log.iterations[step - 1]
    finished = sum(request.times[-1] <= now.end for request in log.requests)
    working = ", ".join(f"request {share.id} in slot {share.slot + 1}" for share in now.shares) or "nobody"
    return with_slot_legend(figure), (
        f"{policy} batching, {slots} slots, lengths {spread}, load {load}; pass {step}: {working}; "
        f"{len(now.idle)} slots held by finished requests, {now.waiting} requests waiting, "
        f"{finished} of {len(log.requests)} finished. The whole run: {said}."
    )


def show_batching() -> None:
    """Sliders for slots, load, spread of the lengths, policy and pass; shows slots and queue."""
    controls = {
        "slots": Slider("slots", SLOTS, 4),
        "load": Slider("requests/pass", LOADS, "at once"),
        "spread": Slider("output lengths", tuple(SPREADS), "exponential"),
        "policy": Slider("policy", tuple(POLICIES), "continuous"),
        "step": Slider("pass", STEPS, 24),
    }
    show(controls, draw_batching, stored=[{"policy": policy, "step": STEPS[-1]} for policy in ("static", "continuous")])
