"""Lesson 08's widget: what one lookahead step feeds, who sees whom, and what it must commit to pay."""

from functools import partial

from matplotlib.axes import Axes

from lessons_lib.figures.lookahead import plot_branch_mask
from lessons_lib.figures.style import FONT_SIZE
from lessons_lib.measure.speculation import WidthCurve, width_cost
from lessons_lib.widgets.controls import Slider, show

WINDOWS, NGRAMS, GUESSES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20), (3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 7, 10, 15, 20)


def tokens_fed(W: int, N: int, G: int) -> int:
    """Tokens of a step that verifies G n-grams without a common beginning: (W + G)(N - 1), the anchor included."""
    return (W + G) * (N - 1)


def headline(W: int, N: int, G: int, v: WidthCurve = None) -> str:
    """The step's size and what it must commit, given this machine's v(w); without it extra rows are free."""
    fed = tokens_fed(W, N, G)
    return f"{fed} tokens fed, at most {N} committed; pays above {width_cost(v)(fed):.2f} tokens a step"


def draw_lookahead(v: WidthCurve, W: int, N: int, G: int) -> Axes:
    """The step's mask under its headline."""
    ax = plot_branch_mask(W, N, G)
    ax.set_title(headline(W, N, G, v).replace("; ", "\n"), fontsize=FONT_SIZE)  # one line is wider than the mask
    return ax


def describe_lookahead(v: WidthCurve, W: int, N: int, G: int) -> str:
    """The figure in words."""
    return (
        f"Mask of a lookahead step with W={W}, N={N}, G={G}: {headline(W, N, G, v)}. Each n-gram sees itself and "
        "the anchor; each window token sees the top row up to its column, then its own column."
    )


def show_lookahead(v: WidthCurve = None, W: int = 5, N: int = 4, G: int = 2) -> None:
    """Sliders for W, N and G over the mask; v: the machine's measured width curve, {w: v}.

    ValueError for a W, N or G that is not in WINDOWS, NGRAMS or GUESSES.
    """
    controls = {
        "W": Slider("W, columns of the window", WINDOWS, W),
        "N": Slider("N, tokens of an n-gram", NGRAMS, N),
        "G": Slider("G, n-grams verified", GUESSES, G),
    }
    show(controls, partial(draw_lookahead, v), partial(describe_lookahead, v))
