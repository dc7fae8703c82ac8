"""Lesson 04's widget: the tiles that a choice of blocks makes, what they move, and the fast memory that they need."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from lessons_lib.attention.traffic import held, keys_outside_traffic, naive_traffic, tiled_traffic
from lessons_lib.figures.attention import plot_tiles
from lessons_lib.widgets.controls import Slider, show

BLOCKS, CONTEXTS, DIMS = (8, 16, 32, 64, 128, 256), (256, 512, 1024, 2048, 4096, 8192), (32, 64, 128, 256)
ORDERS = {"queries outside (2)": tiled_traffic, "keys outside (1)": keys_outside_traffic}
ELEMENT = 2  # bytes of a number: fp16 or bf16


@dataclass(frozen=True)
class Tiling:
    """One head's causal prefill in bytes: what tiles move, what the naive form moves, what a tile keeps."""

    moved: int
    naive: int
    held: int


def tiling(block_q: int, block_k: int, context: int, dim: int, order: str) -> Tiling:
    """Bytes in 16-bit numbers for one head of `dim` channels over `context` tokens.

    block_q, block_k: tokens in a block. order: one of ORDERS, else KeyError.
    """
    moved = ORDERS[order](context, context, dim, block_q, block_k, causal=True).moved
    naive = naive_traffic(context, context, dim).moved
    return Tiling(ELEMENT * moved, ELEMENT * naive, ELEMENT * held(block_q, block_k, dim))


def headline(block_q: int, block_k: int, context: int, dim: int, order: str) -> str:
    """What is moved, against the naive form, and what must fit into fast memory. KeyError as `tiling`."""
    found = tiling(block_q, block_k, context, dim, order)
    return (
        f"one head moves {found.moved / 1e6:.3g} MB, {found.moved / found.naive:.1%} of naive; "
        f"a tile keeps {found.held / 2**10:,.0f} KiB"
    )


def draw_attention(block_q: int, block_k: int, context: int, dim: int, order: str) -> Axes:
    """The tiles under their headline; KeyError as `tiling`."""
    ax = plot_tiles(context, context, block_q, block_k)
    ax.set_title(headline(block_q, block_k, context, dim, order), fontsize=10)
    return ax


def describe_attention(block_q: int, block_k: int, context: int, dim: int, order: str) -> str:
    """The figure in words; KeyError as `tiling`."""
    return (
        f"Causal attention over {context:,} tokens in tiles of {block_q} queries and {block_k} keys, {order}: "
        f"{headline(block_q, block_k, context, dim, order)}. Tiles above the diagonal are skipped."
    )


def show_attention(block_q: int = 64, block_k: int = 64, context: int = 1024) -> None:
    """Sliders for both block sizes, the context, the channels of a head and the loop order over the tiles.

    All three sizes must be values of their sliders, else ValueError.
    """
    controls = {
        "block_q": Slider("queries in a block", BLOCKS, block_q),
        "block_k": Slider("keys in a block", BLOCKS, block_k),
        "context": Slider("context", CONTEXTS, context, "tokens"),
        "dim": Slider("channels of a head", DIMS, 64),
        "order": Slider("loop order", tuple(ORDERS), next(iter(ORDERS))),
    }
    show(controls, draw_attention, describe_attention)
