"""Colours, sizes and the look of every figure, so that a method looks the same in every lesson.

The palette joins Okabe and Ito's colours with Paul Tol's "muted" set, without the pale ones: readers with any
common colour blindness tell them apart, and all stand out on white. Methods that never meet in one figure
share a colour.
"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#3C9BD0", "#009E73", "#D55E00"
PURPLE, WINE, GOLD, INDIGO = "#B4548A", "#882255", "#A67C00", "#332288"
INK, GREY, PALE, PAPER = "#222222", "#6B6B6B", "#E4E4E4", "#FFFFFF"

COLORS = {
    # how a run is judged
    "predicted": GREY, "measured": BLUE, "limit": INK, "peer": GOLD,
    # caches and compilation
    "plain": GREY, "no-cache": ORANGE, "cache": BLUE, "dynamic": GREY, "static": SKY, "eager": ORANGE,
    "compiled": GREEN, "frozen": GOLD, "open": PURPLE, "generate": GREY, "transformers": GREY, "decoder": BLUE,
    # the two phases of a request, and the parts of a step
    "prefill": ORANGE, "decode": BLUE, "matrix products": BLUE, "attention": ORANGE, "the rest": GREY,
    "weights": BLUE, "kv cache": ORANGE, "launch": PURPLE, "sampling": GREEN,
    "slow products": SKY, "one kernel": GREEN,
    # speculation
    "draft": SKY, "prompt-lookup": GREEN, "jacobi": GOLD, "lookahead": PURPLE, "medusa": WINE,
    "early-exit": INDIGO, "verify": BLUE, "accepted": GREEN, "rejected": ORANGE,
    # attention
    "naive": ORANGE, "tiled": GREEN, "keys outside": GOLD, "sdpa": BLUE,
    # batching
    "continuous": GREEN, "continuous, by memory": BLUE,
    "transformers, continuous": GOLD, "transformers, padded": ORANGE,
    # number formats
    "fp64": INDIGO, "fp32": ORANGE, "bf16": BLUE, "fp16": SKY, "int8": GREEN, "int4": PURPLE,
}  # fmt: skip

CYCLE = (BLUE, ORANGE, GREEN, PURPLE, GOLD, INDIGO, SKY, WINE, GREY)  # for what is no method: models, prompts
MARKERS = "os^Dv<>P*X"  # such lines differ in marker as well as in colour

WIDTH = 6.4  # inches; a figure is shown 704 CSS pixels wide, stored at twice that, and shrinks on a phone
DPI = 220  # 110 stored twice as fine
FONT_SIZE = 11
SMALL = FONT_SIZE - 1
LIFTED = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}  # behind words that may meet a line
ABOVE = dict(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)  # a legend that hides no curve

plt.rcParams["legend.framealpha"] = 1  # of all legends, a lesson's own, too: no line runs through their words


def color(method: str) -> str:
    """The hex colour of a method. Raises KeyError naming the table to extend when it has none yet."""
    if method not in COLORS:
        raise KeyError(f"no colour for {method!r}: add it to COLORS in lessons_lib/figures/style.py")
    return COLORS[method]


def look(number: int) -> tuple[str, str]:
    """Colour and marker of the so manieth line (from 0) of what is no method; again from the first after the last."""
    return CYCLE[number % len(CYCLE)], MARKERS[number % len(MARKERS)]


def tint(color: str, strength: float = 0.22) -> str:
    """A colour thinned with white, so that dark text stands on it; ValueError for what matplotlib does not know."""
    return to_hex([1 - strength * (1 - channel) for channel in to_rgb(color)])


def axes(figsize: tuple[float, float] = (WIDTH, 3.6)) -> Axes:
    """Empty axes in the house style; figsize in inches.

    Styled one by one and not through rc_context: the first figure of a session loads the notebook's backend,
    which turns interactive mode on, and leaving the context would turn it off again, also for other plots.
    """
    [ax] = panels(1, figsize)
    return ax


def panels(count: int, figsize: tuple[float, float], across: int | None = None) -> list[Axes]:
    """So many empty axes in one figure, `across` (without it all) beside each other; figsize in inches, of all."""
    columns = min(count, across or count)
    _, grid = plt.subplots(
        -(-count // columns), columns, figsize=figsize, layout="compressed", facecolor=PAPER, squeeze=False
    )
    for ax in grid.flat[count:]:
        ax.remove()
    for ax in grid.flat[:count]:
        ax.tick_params(labelsize=SMALL)
        for axis in (ax.xaxis, ax.yaxis):
            axis.label.set_size(FONT_SIZE)
    return [_dressed(ax) for ax in grid.flat[:count]]


def axes_in(figure: Figure, place: tuple[float, float, float, float]) -> Axes:
    """The same at a place of a figure (left, bottom, width, height as shares), its labels in matplotlib's own size."""
    return _dressed(figure.add_axes(place))


def plain_numbers(axis: Axis) -> None:
    """1, 10 and 1,000 along a logarithmic axis, not powers of ten."""
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def _dressed(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.grid(color=PALE)
    ax.set_axisbelow(True)
    return ax
