"""The widget of the lesson on attention kernels: what tiles of a chosen size move and hold."""

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from lessons_lib.attention.heads import Sight, spans
from lessons_lib.attention.traffic import held, naive_traffic, tiled_traffic
from lessons_lib.course.figures import COLORS, GREY, PAPER, SMALL, axes, tint
from lessons_lib.course.widgets import Slider, show

SKIPPED, CROSSED, WHOLE = range(3)
STATES = {WHOLE: "computed", CROSSED: "computed, partly masked", SKIPPED: "skipped"}
TINTS = [PAPER, tint(COLORS["tiled"], 0.35), tint(COLORS["tiled"], 0.8)]


def tile_states(T: int, block_q: int, block_k: int) -> list[list[int]]:
    """State of each tile of T causal queries, a row per block: WHOLE, CROSSED by the diagonal, or SKIPPED."""
    sight = Sight(T, T, causal=True)

    def state(rows: range, columns: range) -> int:
        if columns.start >= sight.reaches(rows):
            return SKIPPED
        return WHOLE if sight.tile(rows, columns) is None else CROSSED

    return [[state(rows, columns) for columns in spans(T, block_k)] for rows in spans(T, block_q)]


def plot_tiles(T: int, block_q: int, block_k: int) -> Axes:
    """The causal scores of T tokens in tiles: computed, masked in part, or skipped."""
    states, ax = tile_states(T, block_q, block_k), axes((5.2, 4.6))
    height, width = len(states), len(states[0])
    ax.imshow(states, cmap=ListedColormap(TINTS), vmin=0, vmax=2, aspect="auto", extent=(0, width, height, 0))
    ax.grid(False)
    if max(width, height) <= 40:
        ax.hlines(range(height + 1), 0, width, GREY, linewidth=0.6)
        ax.vlines(range(width + 1), 0, height, GREY, linewidth=0.6)
    shown = sorted({state for row in states for state in row}, reverse=True)
    patches = [Patch(facecolor=TINTS[state], edgecolor=GREY, label=STATES[state]) for state in shown]
    ax.legend(handles=patches, loc="upper right", fontsize=SMALL)
    ax.set(xlabel=f"keys, blocks of {block_k}", ylabel=f"queries, blocks of {block_q}")
    ax.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    return ax


BLOCKS, CONTEXTS, DIMS = (8, 16, 32, 64, 128, 256), (256, 512, 1024, 2048, 4096, 8192), (32, 64, 128, 256)


def tiling(block_q: int, block_k: int, context: int, dim: int) -> tuple[int, int, int]:
    """Bytes of one head's causal prefill: (moved by tiles, moved by the naive form, held by a tile).

    All is in 16 bits but a tile's scores and output. block_q, block_k: tokens in a block. dim: head dimension.
    """
    moved = tiled_traffic(context, context, dim, block_q, block_k, causal=True).moved
    return 2 * moved, 2 * naive_traffic(context, context, dim).moved, held(block_q, block_k, dim)


def draw_attention(block_q: int, block_k: int, context: int, dim: int) -> tuple[Axes, str]:
    """The tiles; the title shows bytes moved and held."""
    moved, naive, kept = tiling(block_q, block_k, context, dim)
    traffic = f"one head, {context:,} tokens: moves {moved / 1e6:.3g} MB, {moved / naive:.1%} of naive"
    said = f"{traffic}; held at a time: {kept / 2**10:,.0f} KiB"
    ax = plot_tiles(context, block_q, block_k)
    ax.set_title(said.replace("; ", "\n"), fontsize=10)
    return ax, (
        f"Causal attention over {context:,} tokens in tiles of {block_q} queries and {block_k} keys: "
        f"{said}. Tiles above the diagonal are skipped."
    )


def show_attention(block_q: int, block_k: int, context: int) -> None:
    """Sliders for both block sizes, the context and the head dimension over the tiles."""
    controls = {
        "block_q": Slider("queries in a block", BLOCKS, block_q),
        "block_k": Slider("keys in a block", BLOCKS, block_k),
        "context": Slider("context", CONTEXTS, context, "tokens"),
        "dim": Slider("channels of a head", DIMS, 64),
    }
    show(controls, draw_attention)
