"""Drawings of the model (lessons 01, 02): its parts, and how query heads share keys and values."""

from matplotlib.axes import Axes

from lessons_lib.course.figures import BLUE, FONT_SIZE, GREEN, GREY, ORANGE, PURPLE, SMALL
from tools.drawings.shapes import arrow, box, canvas, drawing, frame, line, note


@drawing(
    "A decoder-only language model, from bottom to top: token ids go through the embedding, then through "
    "L equal layers. A layer adds to its input first masked self-attention, which keeps keys and values "
    "in the cache, then an MLP; each has an RMSNorm before it. A last RMSNorm and the LM head give one "
    "logit per vocabulary entry; the token chosen from them is fed in again."
)
def decoder_only_model() -> Axes:
    """From token ids to the next token, with SmolLM2-135M's sizes at the side."""
    ax = canvas(66)
    parts = [
        (2, "token ids", GREY, "T tokens"),
        (9, "embedding", GREEN, "49,152 × 576, a table look-up"),
        (18, "RMSNorm", PURPLE, ""),
        (23.5, "masked self-attention", BLUE, "9 query heads, 3 key-value heads\nkeys, values → KV cache"),
        (33, "RMSNorm", PURPLE, ""),
        (38.5, "MLP (SwiGLU)", ORANGE, "three matmuls, 576 ↔ 1,536"),
        (49, "RMSNorm", PURPLE, ""),
        (54.5, "LM head", GREEN, "576 → 49,152 logits"),
        (61, "next token", GREY, "the argmax, or a sample"),
    ]
    for y, name, shade, remark in parts:
        box(ax, 13, y, 20, 3.6, name, shade)
        note(ax, 36, y + 1.8, remark, align="left", size=SMALL)
    for (lower, *_), (upper, *_) in zip(parts, parts[1:], strict=False):
        arrow(ax, (23, lower + 3.6), (23, upper))
    _residual(ax, below=15.4, above=29.9)
    _residual(ax, below=31, above=45.2)
    frame(ax, 8, 14, 54.5, 33)
    note(ax, 61.5, 45, "× 30 layers", align="right", bold=True)
    line(ax, [(13, 62.8), (3, 62.8), (3, 3.8)], GREY)
    arrow(ax, (3, 3.8), (13, 3.8), GREY)
    note(ax, 5.4, 33, "fed in again", GREY, size=SMALL)
    ax.texts[-1].set_rotation(90)
    return ax


def _residual(ax: Axes, below: float, above: float) -> None:
    """The way around a part of a layer: its input is added to its output."""
    line(ax, [(23, below), (10.5, below), (10.5, above)], GREY)
    arrow(ax, (10.5, above), (22, above), GREY)
    ax.plot([23], [above], "o", color="white", markeredgecolor=GREY, markersize=13, zorder=3)
    ax.text(23, above, "+", ha="center", va="center", fontsize=FONT_SIZE, zorder=4)


@drawing(
    "Nine query heads and the key-value heads that they read, three ways. Multi-head attention: nine key-"
    "value heads, one for each query head. Grouped-query attention, as in SmolLM2: three, each shared by "
    "three query heads, so the cache is a third. Multi-query attention: one for all, a ninth of the "
    "cache."
)
def head_sharing() -> Axes:
    """MHA, GQA and MQA with SmolLM2's nine query heads."""
    ax = canvas(25)
    for number, (name, shared, size) in enumerate(
        [("multi-head", 9, "cache: 1"), ("grouped-query", 3, "cache: 1/3"), ("multi-query", 1, "cache: 1/9")]
    ):
        left = 8.4 + number * 19
        note(ax, left + 8.5, 23, name, bold=True)
        for head in range(9):
            x = left + head * 1.9
            owner = left + ((head // (9 // shared)) + 0.5) * 17.1 / shared - 0.2
            line(ax, [(x + 0.8, 16), (owner, 9)], GREY, width=1)
            box(ax, x, 16, 1.5, 3.4, color=BLUE)
        for kv in range(shared):
            box(ax, left + (kv + 0.5) * 17.1 / shared - 0.95, 5.6, 1.5, 3.4, color=ORANGE)
        note(ax, left + 8.5, 2.2, size)
    note(ax, 7.4, 17.7, "query\nheads", BLUE, align="right", size=SMALL)
    note(ax, 7.4, 7.3, "key-value\nheads", ORANGE, align="right", size=SMALL)
    return ax
