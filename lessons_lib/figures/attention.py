"""Tiles of attention, who works on which, and traffic, memory and time against sizes (lesson 04)."""

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from lessons_lib.attention.heads import Sight, spans
from lessons_lib.figures.compare import plot_prediction
from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import (
    ABOVE,
    BLUE,
    COLORS,
    CYCLE,
    FONT_SIZE,
    GREY,
    INK,
    LIFTED,
    ORANGE,
    PAPER,
    SMALL,
    WIDTH,
    axes,
    color,
    panels,
    plain_numbers,
    tint,
)

SKIPPED, CROSSED, WHOLE = range(3)
STATES = {WHOLE: "computed", CROSSED: "computed, partly masked", SKIPPED: "skipped"}
TINTS = [PAPER, tint(COLORS["tiled"], 0.35), tint(COLORS["tiled"], 0.8)]
MOST_RULED = 40  # tiles in a row that still get lines between them
BOUNDS = ("predicted", "low", "high")  # of a prediction, in rows
WORKERS = 4  # of each kind, in the pictures of who does what


def tile_states(T: int, S: int, block_q: int, block_k: int) -> list[list[int]]:
    """What becomes of each tile, a row per block of queries: WHOLE, CROSSED by the causal diagonal, or SKIPPED."""
    sight = Sight(T, S, True)

    def state(rows: range, columns: range) -> int:
        if columns.start >= sight.reaches(rows):
            return SKIPPED
        return WHOLE if sight.tile(rows, columns) is None else CROSSED

    return [[state(rows, columns) for columns in spans(S, block_k)] for rows in spans(T, block_q)]


def plot_tiles(T: int, S: int, block_q: int, block_k: int, now: tuple[int, int] | None = None) -> Axes:
    """The causal scores in tiles. now: (row, column) of the one in fast memory; its queries and keys are marked."""
    states, ax = tile_states(T, S, block_q, block_k), axes((5.2, 4.6))
    height, width = len(states), len(states[0])
    ax.imshow(states, cmap=ListedColormap(TINTS), vmin=0, vmax=2, aspect="auto", extent=(0, width, height, 0))
    ax.grid(False)
    if max(width, height) <= MOST_RULED:
        ax.hlines(range(height + 1), 0, width, GREY, linewidth=0.6)
        ax.vlines(range(width + 1), 0, height, GREY, linewidth=0.6)
    marks = _mark(ax, *now) if now else []
    shown = sorted({state for row in states for state in row}, reverse=True)
    patches = [Patch(facecolor=TINTS[state], edgecolor=GREY, label=STATES[state]) for state in shown]
    ax.legend(handles=[*patches, *marks], loc="upper right", fontsize=SMALL)
    ax.set(xlabel=f"keys, blocks of {block_k}", xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    ax.set_ylabel(f"queries, blocks of {block_q}", labelpad=8)  # beside the stripe of a marked tile
    ax.figure.get_layout_engine().set(h_pad=0.1)  # inches: the stripe above it, too, lies half outside
    return ax


def _mark(ax: Axes, row: int, column: int) -> list[Patch | Line2D]:
    """Outline a tile, and stripes along the axes for what had to be loaded for it -> what a legend can show."""
    tile = Rectangle((column, row), 1, 1, fill=False, edgecolor=INK, linewidth=2.4, zorder=3, label="in fast memory")
    ax.add_patch(tile)
    wide = dict(linewidth=9, solid_capstyle="butt", clip_on=False)
    queries = ax.plot([0, 0], [row, row + 1], color=ORANGE, label="its queries", **wide)
    return [tile, *queries, *ax.plot([column, column + 1], [0, 0], color=BLUE, label="its keys", **wide)]


def plot_naive_and_tiled() -> Figure:
    """Above each other: all scores go through slow memory; one tile at a time is in fast memory."""
    (upper, lower), blocks = panels(2, (4.4, 8), 1), 8
    full = tint(COLORS["naive"], 0.6)
    for ax in (upper, lower):
        ax.imshow([[0] * blocks] * blocks, cmap=ListedColormap([PAPER]), extent=(0, blocks, blocks, 0))
        ax.grid(False)
        ax.set(xlim=(-0.4, blocks), ylim=(blocks, -0.4), xticks=[], yticks=[], xlabel="keys", ylabel="queries")
    upper.add_patch(Rectangle((0, 0), blocks, blocks, facecolor=full, edgecolor=GREY))
    upper.set_title("naive: every score written and read", fontsize=FONT_SIZE)
    lower.hlines(range(blocks + 1), 0, blocks, GREY, linewidth=0.6)
    lower.vlines(range(blocks + 1), 0, blocks, GREY, linewidth=0.6)
    row, column = blocks // 2, blocks // 3
    lower.add_patch(Rectangle((0, row), column, 1, facecolor=TINTS[CROSSED]))
    lower.add_patch(Rectangle((column, row), 1, 1, facecolor=TINTS[WHOLE]))
    _mark(lower, row, column)
    lower.text(column + 1.15, -0.05, "its keys", color=BLUE, va="bottom", fontsize=FONT_SIZE)
    lower.text(0.2, row - 0.1, "its queries", color=ORANGE, va="bottom", fontsize=FONT_SIZE, bbox=LIFTED)
    lower.annotate("", (blocks - 0.2, row + 0.5), (column + 1.2, row + 0.5), arrowprops={"arrowstyle": "-|>"})
    lower.set_title("tiled: one tile at a time, none kept", fontsize=FONT_SIZE)
    return upper.figure


def partition(kind: str) -> list[list[int]]:
    """Which worker computes which tile of one head's scores, two rows for each worker; decoding has one.

    kind: "head" (one worker for all), "queries" (a worker per row of tiles), "keys" (a worker per stretch of keys),
    "decoding" (the same for one query). ValueError for any other.
    """
    share, blocks = 2, 2 * WORKERS
    rules = {
        "head": lambda i, j: 0,
        "queries": lambda i, j: i // share,
        "keys": lambda i, j: j // share,
        "decoding": lambda i, j: j // share,
    }
    if kind not in rules:
        raise ValueError(f"kind={kind!r} is not known; choose one of: {', '.join(rules)}")
    return [[rules[kind](i, j) for j in range(blocks)] for i in range(1 if kind == "decoding" else blocks)]


PANELS = (
    ("head", "version 1\none thread block a head", "its keys outside, queries inside"),
    ("queries", "version 2\none for each block of queries", "each writes its own rows once"),
    ("decoding", "decoding, keys split\none for each stretch of keys", "results merged by logsumexp"),
    ("keys", "version 1\na tile's keys split", "four partial outputs,\nadded through shared memory"),
    ("queries", "version 2\na tile's queries split", "four outputs of their own,\nnothing to exchange"),
)


def plot_partition() -> Figure:
    """Who works on which part: thread blocks on a head's scores; in the last row, the four warps of one on a tile."""
    figure = plt.figure(figsize=(WIDTH, 8.4), layout="compressed", facecolor=PAPER)
    grid = figure.subplot_mosaic("AB;C.;DE", height_ratios=(4, 1, 4))
    for ax, (kind, title, below) in zip(grid.values(), PANELS, strict=True):
        owners = partition(kind)
        shades = [tint(shade, 0.55) for shade in CYCLE[:WORKERS]]
        extent = (0, len(owners[0]), len(owners), 0)
        ax.imshow(owners, cmap=ListedColormap(shades), vmin=0, vmax=WORKERS - 1, extent=extent)
        ax.hlines(range(len(owners) + 1), 0, len(owners[0]), PAPER, linewidth=0.8)
        ax.vlines(range(len(owners[0]) + 1), 0, len(owners), PAPER, linewidth=0.8)
        ax.set_title(title, fontsize=FONT_SIZE)
        ax.set(xticks=[], yticks=[], ylabel="query" if kind == "decoding" else "queries")
        ax.set_xlabel(f"keys\n{below}", fontsize=FONT_SIZE)
        ax.spines[:].set_visible(False)
    return figure


def plot_traffic(rows: Iterable[Any], least: float, unit: str = "MB moved") -> Axes:
    """What is moved against the block size: lines by formula, dots counted, a dash-dotted floor.

    rows: `method`, `block`, `predicted` and, where it was counted, `counted`, in `unit`; a method of one row is a
    horizontal line. least: each input read once and the output written once. ValueError without rows, KeyError for a
    method without a colour.
    """
    ax, rows = axes(), as_dicts(rows)
    blocks = sorted({row["block"] for row in rows})
    for method, group in by_key(rows, "method").items():
        group, shade = sorted(group, key=lambda row: row["block"]), color(method)
        at = blocks if len(group) == 1 else [row["block"] for row in group]
        ax.plot(at, [row["predicted"] for row in group] * (len(blocks) if len(group) == 1 else 1), "--", color=shade)
        dots = [(row["block"], row["counted"]) for row in group if row.get("counted") is not None]
        ax.plot(*zip(*dots, strict=True) if dots else ([], []), "o", color=shade, label=method)
    ax.axhline(least, color=COLORS["limit"], linestyle="-.", label="everything once")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_xticks(blocks, [str(block) for block in blocks])
    ax.set(xlabel="block size, queries and keys", ylabel=unit)
    ax.legend(title="dots: counted; dashed: formula", ncols=4, **ABOVE)
    return ax


def plot_context(rows: Sequence[Any], y: str) -> Axes:
    """Memory or time against the context, both logarithmic: a slope of 2 is quadratic, of 1 linear.

    rows: as `plot_prediction` takes them, with `tokens`; y names the unit. Errors as `plot_prediction`.
    """
    rows = [{**row, "context, tokens": row["tokens"]} for row in as_dicts(rows)]
    ax = plot_prediction(rows, "context, tokens", y)
    at = sorted({row["tokens"] for row in rows})
    shown = [x for row in rows for x in (*row["samples"], *(row[key] for key in BOUNDS if key in row))]
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_ylim(min(shown) / 2, max(shown) * 2)
    ax.set_xticks(at, [f"{tokens:,}" for tokens in at])
    ax.legend(title=ax.get_legend().get_title().get_text(), ncols=4, **ABOVE)
    return ax
