"""Who may look at whom (lessons 08 and 09): a square mask, drawn as cells with thin lines between them; and what
stands in a cell: a token as a word."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from torch import Tensor

from lessons_lib.figures.style import GREY, PAPER, SMALL, axes

READABLE = 32  # tokens up to which a mask's rows and columns are named


def plot_mask(allow: Tensor, kinds: Sequence[int], shades: Sequence[str], ax: Axes | None = None) -> Axes:
    """allow (T, T) bool: each allowed cell in the shade of the kind (1, 2, ..) of the token that is looked at.

    kinds: T of them, else ValueError. shades: of the kinds, in order.
    """
    size = len(kinds)
    ax = ax or axes((6.4, 5.8))
    cells = [[kind if ok else 0 for kind, ok in zip(kinds, row, strict=True)] for row in allow.tolist()]
    ax.imshow(cells, cmap=ListedColormap([PAPER, *shades]), vmin=0, vmax=len(shades))
    rule(ax, size, size)
    return ax


def word(tokenizer, *tokens: int) -> str:
    """Tokens as they fit a cell: in one line, line ends and the like as Python writes them, no blanks around it."""
    return repr(tokenizer.decode(tokens))[1:-1].strip()


def name_tokens(ax: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Label a mask's tokens, as long as there is room for it."""
    many = len(columns) > READABLE
    ax.set_xticks([] if many else range(len(columns)), [] if many else columns, rotation=90, fontsize=SMALL)
    ax.set_yticks([] if many else range(len(rows)), [] if many else rows, fontsize=SMALL)


def rule(ax: Axes, columns: int, rows: int) -> None:
    """Thin lines between cells and none through them."""
    ax.set_xticks([i - 0.5 for i in range(1, columns)], minor=True)
    ax.set_yticks([i - 0.5 for i in range(1, rows)], minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", color=GREY, linewidth=0.4)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(True)
