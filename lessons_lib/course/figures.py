"""The look of every figure, and the plots that several lessons share.

A plot function takes rows (dicts), draws, and returns its Axes or Figure; it never measures, saves or shows. Plots of a
single lesson are in the file of its topic; `display.display` shows a figure with its alt text.

The palette joins Okabe and Ito's colours with Paul Tol's "muted" set, without the pale ones. Readers with any common
colour blindness can tell them apart, and all stand out on white.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, to_hex, to_rgb
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullFormatter
from torch import Tensor

plt.style.use(Path(__file__).with_name("lessons.mplstyle"))

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#3C9BD0", "#009E73", "#D55E00"
PURPLE, WINE, GOLD, INDIGO = "#B4548A", "#882255", "#A67C00", "#332288"
INK, GREY, PALE, PAPER = "#222222", "#6B6B6B", "#E4E4E4", "#FFFFFF"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, GOLD, INDIGO, SKY, WINE, GREY)  # for lines that are not methods: models, prompts
MARKERS = "os^Dv<>P*X"  # these lines also differ in their marker

COLORS = {
    # kinds of values
    "predicted": GREY, "measured": BLUE, "limit": INK, "peer": GOLD,
    # caches and compilation
    "plain": GREY, "no-cache": ORANGE, "cache": BLUE, "dynamic": GREY, "static": SKY, "eager": ORANGE,
    "compiled": GREEN, "open": PURPLE, "generate": GREY, "transformers": GREY, "decoder": BLUE,
    # phases of a request, parts of a step
    "prefill": ORANGE, "decode": BLUE, "matmuls": BLUE, "attention": ORANGE, "the rest": GREY,
    "weights": ORANGE, "KV cache": BLUE, "launch": PURPLE, "sampling": GREEN,
    # speculation
    "draft": SKY, "prompt-lookup": GREEN, "jacobi": GOLD, "lookahead": PURPLE, "medusa": WINE,
    "early-exit": INDIGO, "verify": BLUE, "accepted": GREEN, "rejected": ORANGE,
    # attention
    "naive": ORANGE, "tiled": GREEN, "sdpa": BLUE,
    # batching
    "continuous": GREEN, "continuous, by memory": BLUE,
    # number formats
    "fp64": INDIGO, "fp32": ORANGE, "bf16": BLUE, "fp16": SKY, "int8": GREEN, "int4": PURPLE,
    "W8A16": GREEN, "W8A8": GOLD, "W4A16": PURPLE, "W4A8": WINE,
}  # fmt: skip

WIDTH = 6.4  # inches, 704 CSS pixels; shrinks on a phone
FONT_SIZE, SMALL = 11, 10
LIFTED = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}  # background for labels that may cross a line
ABOVE = dict(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)  # legend above the axes

Row = Mapping[str, Any]


def axes(figsize: tuple[float, float] = (WIDTH, 3.6)) -> Axes:
    """Empty axes of a new figure; figsize in inches."""
    return plt.subplots(figsize=figsize, layout="compressed")[1]


def look(number: int) -> tuple[str, str]:
    """Colour and marker of line `number` (from 0), for lines that stand for models or prompts."""
    return CYCLE[number % len(CYCLE)], MARKERS[number % len(MARKERS)]


def tint(color: str, strength: float = 0.22) -> str:
    """A colour mixed with white, light enough for dark text on it."""
    return to_hex([1 - strength * (1 - channel) for channel in to_rgb(color)])


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with 1, 10 and 1,000 instead of powers of ten."""
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    """Group rows by their value of `key`, in order of first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


# Repeated measurements


def plot_spread(
    ax: Axes, at: Sequence[float], samples: Sequence[Sequence[float]], color: str, label: str, fmt: str = "o"
) -> None:
    """Draw repeated measurements at n places as medians with min-max bars."""
    middle = [median(s) for s in samples]
    bars = [
        [m - min(s) for m, s in zip(middle, samples, strict=True)],
        [max(s) - m for m, s in zip(middle, samples, strict=True)],
    ]
    ax.errorbar(at, middle, yerr=bars, fmt=fmt, capsize=3, color=color, label=label)


def plot_width_curve(curves: Mapping[str, Mapping[int, Any]]) -> Axes:
    """v(w): cost of a forward pass over w tokens, in units of a pass over one token.

    curves: method -> {w: Samples timed in turn}, including w = 1; as in `cost.width_curve`, a pass is divided by the
    one-token pass of its round. The two extremes are drawn for comparison: extra tokens are free (memory-bound), or
    each costs as much as the first (compute-bound).
    """
    ax, highest = axes(), 1.0
    for method, curve in curves.items():
        widths = sorted(curve)
        relative = [[t / t_1 for t, t_1 in zip(curve[w].times, curve[1].times, strict=True)] for w in widths]
        plot_spread(ax, widths, relative, COLORS[method], method, "o-")
        highest = max(highest, *map(max, relative))
    widest = max(max(curve) for curve in curves.values())
    ax.plot([1, widest], [1, widest], ":", color=COLORS["limit"], label="each row at full price")
    ax.plot([1, widest], [1, 1], "-.", color=COLORS["limit"], label="extra rows for free")
    ax.set(xlabel="rows w in one forward pass", ylabel="v(w), forward passes over one row", ylim=(0, 1.1 * highest))
    ax.legend(ncols=2, **ABOVE)
    return ax


def plot_lines(rows: Iterable[Row], x: str, y: str, scale: str = "linear") -> Axes:
    """A line with its own marker for each `label`. rows: `label` and the values under x and y, which name the axes."""
    ax = axes()
    for i, (label, group) in enumerate(grouped(rows, "label").items()):
        color, marker = look(i)
        ax.plot([row[x] for row in group], [row[y] for row in group], marker=marker, color=color, label=label)
    ax.set(xlabel=x, ylabel=y, xscale=scale)
    if scale == "log":  # few points, far apart: label each
        at = sorted({value for line in ax.get_lines() for value in line.get_xdata()})
        ax.set_xticks(at, [f"{value:,g}" for value in at])
        ax.minorticks_off()
    ax.legend(fontsize=9)
    return ax


# Waterfall


def plot_waterfall(rows: Sequence[Row], unit: str = "tokens/s") -> Axes:
    """Configurations from the top down, each bar from the speed of its base configuration to its own, on a log axis.

    rows: `configuration` (name), `speed`, and optionally `below` (the base; without one the bar begins at the axis),
    `predicted` (a dark tick), `counts` (False: hatched) and `peer` (True: another engine). On the log axis equal
    lengths are equal factors, and lengths add up. The numbers stand in columns right of the axes, because a number at
    the end of its bar would be mistaken for the predicted value.
    """
    speeds = {row["configuration"]: row["speed"] for row in rows}
    predicted = [row["predicted"] for row in rows if row.get("predicted")]
    ax = axes((WIDTH, 1.5 + 0.36 * len(rows)))
    low, high = 0.7 * min([*speeds.values(), *predicted]), 1.1 * max([*speeds.values(), *predicted])
    ax.set(xscale="log", xlim=(low, high), xlabel=unit)
    kinds = {
        "gain": Patch(color=COLORS["measured"], label="gain on the configuration below"),
        "loss": Patch(color=ORANGE, label="loss"),
        "hatched": Patch(facecolor=GREY, edgecolor=PAPER, hatch="////", label="does not count: perplexity"),
        "peer": Patch(color=COLORS["peer"], label="another engine"),
    }
    seen, numbers = {"gain"}, dict(xycoords=ax.get_yaxis_transform(), textcoords="offset points", ha="right")
    numbers |= dict(va="center", fontsize=SMALL, color=INK, annotation_clip=False)
    # bars, with their numbers in columns at the right
    for place, row in enumerate(rows):
        below = speeds.get(row.get("below"))
        start = below or low
        kind = "peer" if row.get("peer") else "gain" if row["speed"] >= start else "loss"
        hatched = {"hatch": "////", "edgecolor": PAPER} if row.get("counts") is False else {}
        ax.barh(place, row["speed"] - start, left=start, height=0.62, color=kinds[kind].get_facecolor(), **hatched)
        seen |= {kind, "hatched"} if hatched else {kind}
        ax.annotate(f"{row['speed']:.3g}", (1, place), (54, 0), **numbers)
        if below:
            ax.annotate(f"×{row['speed'] / below:.2f}", (1, place), (92, 0), **numbers)
        if row.get("predicted"):
            ax.plot([row["predicted"]] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=2)
            ax.annotate(f"{row['predicted']:.3g}", (1, place), (146, 0), **numbers)
    # legend and headings of the columns
    handles = [patch for kind, patch in kinds.items() if kind in seen]
    if predicted:
        ax.annotate("measured", (1, -0.8), (54, 0), **numbers)
        ax.annotate("predicted", (1, -0.8), (146, 0), **numbers)
        handles += ax.plot([], [], "|", color=INK, markersize=12, markeredgewidth=2, label="predicted")
    # axes
    ax.set_yticks(range(len(rows)), [row["configuration"] for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    ticks = [m * 10**e for e in range(-1, 6) for m in (1, 2, 5) if low <= m * 10**e <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return ax


# Grids: masks, trees and Jacobi iterations


def plot_cells(cells: Sequence[Sequence[int]], colors: Sequence[str], ax: Axes, aspect: str = "equal") -> Axes:
    """A grid with thin lines between its cells: 0 stays white, k gets the k-th colour."""
    ax.imshow(cells, cmap=ListedColormap([PAPER, *colors]), vmin=0, vmax=len(colors), aspect=aspect)
    ax.set_xticks([i - 0.5 for i in range(1, len(cells[0]))], minor=True)
    ax.set_yticks([i - 0.5 for i in range(1, len(cells))], minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", color=GREY, linewidth=0.4)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(True)
    return ax


def plot_mask(
    allow: Tensor,
    kinds: Sequence[int],
    colors: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[str],
    ax: Axes,
) -> Axes:
    """An attention mask, allow (T, T) bool: rows are queries, columns are keys.

    kinds: T numbers 1, 2, ...: the kind of each key token, which decides the colour of its cells. Up to 32 tokens are
    labelled.
    """
    cells = [[kind if ok else 0 for kind, ok in zip(kinds, row, strict=True)] for row in allow.tolist()]
    plot_cells(cells, colors, ax)
    shown = range(len(columns) if len(columns) <= 32 else 0)
    ax.set_xticks(shown, columns[: len(shown)], rotation=90, fontsize=SMALL)
    ax.set_yticks(shown, rows[: len(shown)], fontsize=SMALL)
    return ax


def word(tokenizer, *tokens: int) -> str:
    """Decode tokens into a text that fits a cell: one line, without surrounding blanks."""
    return repr(tokenizer.decode(tokens))[1:-1].strip()


# Coloured text

LINE, COLUMNS = 0.19, 84  # height of a line in inches, characters per line
UNDERLINED, STRUCK = 0.92, 0.5  # position of a stroke, as a share of a line from its top
Span = tuple[int, int, str, str]  # line, column, text, producer


class Producer(NamedTuple):
    """Look of one producer's pieces of text: background, legend text, and height of a stroke."""

    color: str
    label: str
    stroke: float | None = None


def lay_out(pieces: Sequence[tuple[str, str]]) -> list[Span]:
    """Arrange (text, producer) pieces in lines of COLUMNS characters.

    A line breaks at newlines of the text and where it is full: after a space if the piece has one, else between pieces,
    else anywhere.
    """
    spans, line, column = [], 0, 0
    for text, who in pieces:
        for number, part in enumerate(text.replace("\t", "    ").split("\n")):
            if number:
                line, column = line + 1, 0
            while part:
                room = COLUMNS - column
                fits = part if len(part) <= room else part[: part.rfind(" ", 0, room) + 1]
                if not fits and column:
                    line, column = line + 1, 0
                    continue
                fits = fits or part[:room]
                spans.append((line, column, fits, who))
                part, column = part[len(fits) :], column + len(fits)
    return spans


def draw_spans(ax: Axes, spans: Sequence[Span], producers: Mapping[str, Producer]) -> Axes:
    """Draw spans and their legend on axes that are 0.98 of a figure wide.

    Each character is placed separately: a renderer rounds character widths to whole pixels, so a long text would drift
    several characters away from its background.
    """
    ax.set(xlim=(0, COLUMNS), ylim=(spans[-1][0] + 1, 0))
    ax.set_axis_off()
    size = 0.98 * WIDTH * 72 / COLUMNS / 0.602  # width of a monospaced character: 0.602 of the font size
    for line, column, text, who in spans:
        color, _, stroke = producers[who]
        ax.add_patch(Rectangle((column, line + 0.04), len(text), 0.88, color=color, alpha=0.45, linewidth=0))
        if stroke:
            ax.plot([column, column + len(text)], [line + stroke] * 2, color=color, linewidth=1.4)
        for place, character in enumerate(text, column):
            if not character.isspace():
                ax.text(place, line + 0.71, character, family="monospace", size=size, color=INK, parse_math=False)
    handles = [Patch(color=p.color, alpha=0.45, label=p.label) for p in producers.values()]
    beside = dict(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1)
    ax.legend(handles=handles, frameon=False, fontsize=9, **beside)
    return ax
