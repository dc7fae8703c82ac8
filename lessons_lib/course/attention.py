"""Figures and widget of the lesson on attention kernels: tiles, the division of work, and memory traffic."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from lessons_lib.attention.heads import Sight, spans
from lessons_lib.attention.traffic import held, keys_outside_traffic, naive_traffic, tiled_traffic
from lessons_lib.course.figures import (
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
    Row,
    axes,
    grouped,
    plain_numbers,
    plot_prediction,
    tint,
)
from lessons_lib.course.widgets import Slider, show

SKIPPED, CROSSED, WHOLE = range(3)
STATES = {WHOLE: "computed", CROSSED: "computed, partly masked", SKIPPED: "skipped"}
TINTS = [PAPER, tint(COLORS["tiled"], 0.35), tint(COLORS["tiled"], 0.8)]


def tile_states(T: int, S: int, block_q: int, block_k: int) -> list[list[int]]:
    """State of each tile, a row per block of queries: WHOLE, CROSSED by the causal diagonal, or SKIPPED."""
    sight = Sight(T, S, causal=True)

    def state(rows: range, columns: range) -> int:
        if columns.start >= sight.reaches(rows):
            return SKIPPED
        return WHOLE if sight.tile(rows, columns) is None else CROSSED

    return [[state(rows, columns) for columns in spans(S, block_k)] for rows in spans(T, block_q)]


def draw_lines(ax: Axes, width: int, height: int, color: str = GREY, linewidth: float = 0.6) -> None:
    """Draw the lines between the tiles of a grid."""
    ax.hlines(range(height + 1), 0, width, color, linewidth=linewidth)
    ax.vlines(range(width + 1), 0, height, color, linewidth=linewidth)


def mark(ax: Axes, row: int, column: int) -> list[Patch | Line2D]:
    """Outline a tile and highlight its queries and keys on the axes; returns the legend's handles."""
    tile = Rectangle((column, row), 1, 1, fill=False, edgecolor=INK, linewidth=2.4, zorder=3, label="in fast memory")
    ax.add_patch(tile)
    wide = dict(linewidth=9, solid_capstyle="butt", clip_on=False)
    queries = ax.plot([0, 0], [row, row + 1], color=ORANGE, label="its queries", **wide)
    return [tile, *queries, *ax.plot([column, column + 1], [0, 0], color=BLUE, label="its keys", **wide)]


def plot_tiles(T: int, S: int, block_q: int, block_k: int, now: tuple[int, int] | None = None) -> Axes:
    """The causal scores in tiles. now: (row, column) of the tile in fast memory; its queries and keys are marked."""
    states, ax = tile_states(T, S, block_q, block_k), axes((5.2, 4.6))
    height, width = len(states), len(states[0])
    ax.imshow(states, cmap=ListedColormap(TINTS), vmin=0, vmax=2, aspect="auto", extent=(0, width, height, 0))
    ax.grid(False)
    if max(width, height) <= 40:
        draw_lines(ax, width, height)
    marks = mark(ax, *now) if now else []
    shown = sorted({state for row in states for state in row}, reverse=True)
    patches = [Patch(facecolor=TINTS[state], edgecolor=GREY, label=STATES[state]) for state in shown]
    ax.legend(handles=[*patches, *marks], loc="upper right", fontsize=SMALL)
    ax.set(xlabel=f"keys, blocks of {block_k}", xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    ax.set_ylabel(f"queries, blocks of {block_q}", labelpad=8)  # leaves room for the mark of a tile's queries
    ax.figure.get_layout_engine().set(h_pad=0.1)  # in inches: the mark of its keys lies half outside
    return ax


def plot_naive_and_tiled() -> Figure:
    """Above: all scores pass through slow memory. Below: one tile at a time is in fast memory."""
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(4.4, 8), layout="compressed")
    blocks = 8
    for ax in (upper, lower):
        ax.imshow([[0] * blocks] * blocks, cmap=ListedColormap([PAPER]), extent=(0, blocks, blocks, 0))
        ax.grid(False)
        ax.set(xlim=(-0.4, blocks), ylim=(blocks, -0.4), xticks=[], yticks=[], xlabel="keys", ylabel="queries")
    whole = dict(facecolor=tint(COLORS["naive"], 0.6), edgecolor=GREY)
    upper.add_patch(Rectangle((0, 0), blocks, blocks, **whole))
    upper.set_title("naive: every score written and read", fontsize=FONT_SIZE)
    draw_lines(lower, blocks, blocks)
    row, column = blocks // 2, blocks // 3
    lower.add_patch(Rectangle((0, row), column, 1, facecolor=TINTS[CROSSED]))
    lower.add_patch(Rectangle((column, row), 1, 1, facecolor=TINTS[WHOLE]))
    mark(lower, row, column)
    lower.text(column + 1.15, -0.05, "its keys", color=BLUE, va="bottom", fontsize=FONT_SIZE)
    lower.text(0.2, row - 0.1, "its queries", color=ORANGE, va="bottom", fontsize=FONT_SIZE, bbox=LIFTED)
    lower.annotate("", (blocks - 0.2, row + 0.5), (column + 1.2, row + 0.5), arrowprops={"arrowstyle": "-|>"})
    lower.set_title("tiled: one tile at a time, none kept", fontsize=FONT_SIZE)
    return figure


PANELS = (
    ("one", "version 1\none thread block a head", "its keys outside, queries inside"),
    ("queries", "version 2\none for each block of queries", "each writes its own rows once"),
    ("decoding", "decoding, keys split\none for each stretch of keys", "results merged by logsumexp"),
    ("keys", "version 1\na tile's keys split", "four partial outputs,\nadded through shared memory"),
    ("queries", "version 2\na tile's queries split", "four outputs of their own,\nnothing to exchange"),
)


def plot_partition() -> Figure:
    """Division of work: thread blocks on a head's scores; in the last row, the four warps of a block on a tile."""
    figure = plt.figure(figsize=(WIDTH, 8.4), layout="compressed")
    grid, workers = figure.subplot_mosaic("AB;C.;DE", height_ratios=(4, 1, 4)), 4
    colors = ListedColormap([tint(color, 0.55) for color in CYCLE[:workers]])
    worker = {"one": lambda i, j: 0, "queries": lambda i, j: i // 2}  # mark at tile (i, j): two tiles each
    for ax, (split, title, below) in zip(grid.values(), PANELS, strict=True):
        height, width = 1 if split == "decoding" else 2 * workers, 2 * workers
        owner = worker.get(split, lambda i, j: j // 2)
        owners = [[owner(i, j) for j in range(width)] for i in range(height)]
        ax.imshow(owners, cmap=colors, vmin=0, vmax=workers - 1, extent=(0, width, height, 0))
        draw_lines(ax, width, height, PAPER, 0.8)
        ax.set_title(title, fontsize=FONT_SIZE)
        ax.set(xticks=[], yticks=[], ylabel="query" if split == "decoding" else "queries", xlabel=f"keys\n{below}")
        ax.grid(False)
        ax.spines[:].set_visible(False)
    return figure


def plot_traffic(rows: Iterable[Row], least: float, unit: str) -> Axes:
    """Memory traffic against block size: lines by formula, dots counted, a dash-dotted lower bound.

    rows: `method`, `block`, `predicted` and optionally `counted`, in `unit`; a method with a single row is drawn as a
    horizontal line. least: each input read once and the output written once.
    """
    ax, rows = axes(), sorted(rows, key=lambda row: row["block"])
    blocks = sorted({row["block"] for row in rows})
    for method, group in grouped(rows, "method").items():
        at, line = [row["block"] for row in group], [row["predicted"] for row in group]
        at, line = (blocks, line * len(blocks)) if len(group) == 1 else (at, line)
        ax.plot(at, line, "--", color=COLORS[method])
        # counted
        dots = [row for row in group if row.get("counted") is not None]
        at, counted = [row["block"] for row in dots], [row["counted"] for row in dots]
        ax.plot(at, counted, "o", color=COLORS[method], label=method)
    ax.axhline(least, color=COLORS["limit"], linestyle="-.", label="everything once")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_xticks(blocks, [str(block) for block in blocks])
    ax.set(xlabel="block size, queries and keys", ylabel=unit)
    ax.legend(title="dots: counted; dashed: formula", ncols=4, **ABOVE)
    return ax


def plot_context(rows: Iterable[Row], y: str) -> Axes:
    """Memory or time against context length, log-log: slope 2 is quadratic, slope 1 linear.

    rows: as in `plot_prediction`, with `tokens`; y names the axis with its unit.
    """
    rows = [{**row, "context, tokens": row["tokens"]} for row in rows]
    ax = plot_prediction(rows, "context, tokens", y)
    at = sorted({row["tokens"] for row in rows})
    bounds = [row[key] for row in rows for key in ("predicted", "low", "high") if key in row]
    shown = [*bounds, *(sample for row in rows for sample in row["samples"])]
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_ylim(min(shown) / 2, max(shown) * 2)
    ax.set_xticks(at, [f"{tokens:,}" for tokens in at])
    ax.legend(title=ax.get_legend().get_title().get_text(), ncols=4, **ABOVE)
    return ax


BLOCKS, CONTEXTS, DIMS = (8, 16, 32, 64, 128, 256), (256, 512, 1024, 2048, 4096, 8192), (32, 64, 128, 256)
ORDERS = {"queries outside (2)": tiled_traffic, "keys outside (1)": keys_outside_traffic}


def tiling(block_q: int, block_k: int, context: int, dim: int, order: str) -> tuple[int, int, int]:
    """Bytes of one head's causal prefill, 16-bit elements: (moved by tiles, moved by the naive form, held by a tile).

    block_q, block_k: tokens in a block. dim: head dimension. order: one of ORDERS.
    """
    moved = ORDERS[order](context, context, dim, block_q, block_k, causal=True).moved
    return 2 * moved, 2 * naive_traffic(context, context, dim).moved, 2 * held(block_q, block_k, dim)


def draw_attention(block_q: int, block_k: int, context: int, dim: int, order: str) -> tuple[Axes, str]:
    """The tiles; the title shows bytes moved and held."""
    moved, naive, kept = tiling(block_q, block_k, context, dim, order)
    said = f"one head moves {moved / 1e6:.3g} MB, {moved / naive:.1%} of naive; a tile keeps {kept / 2**10:,.0f} KiB"
    ax = plot_tiles(context, context, block_q, block_k)
    ax.set_title(said, fontsize=10)
    return ax, (
        f"Causal attention over {context:,} tokens in tiles of {block_q} queries and {block_k} keys, {order}: "
        f"{said}. Tiles above the diagonal are skipped."
    )


def show_attention(block_q: int = 64, block_k: int = 64, context: int = 1024) -> None:
    """Sliders for both block sizes, the context, the head dimension and the loop order over the tiles."""
    controls = {
        "block_q": Slider("queries in a block", BLOCKS, block_q),
        "block_k": Slider("keys in a block", BLOCKS, block_k),
        "context": Slider("context", CONTEXTS, context, "tokens"),
        "dim": Slider("channels of a head", DIMS, 64),
        "order": Slider("loop order", tuple(ORDERS), next(iter(ORDERS))),
    }
    show(controls, draw_attention)
