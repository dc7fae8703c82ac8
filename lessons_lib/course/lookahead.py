"""Figures and widget of the lesson on Jacobi and lookahead decoding: iterations, and the mask and cost of a step."""

from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from torch import Tensor

from lessons_lib.course.figures import (
    ABOVE,
    COLORS,
    FONT_SIZE,
    GREY,
    INK,
    PAPER,
    SMALL,
    WIDTH,
    axes,
    plot_cells,
    plot_mask,
    tint,
)
from lessons_lib.course.widgets import Slider, show
from lessons_lib.decoding.draft_tree import DraftTree, SideTokens, tree_mask
from lessons_lib.decoding.proposers.lookahead import window_layout
from lessons_lib.measure.cost import WidthCurve, width_cost

WRONG, LUCKY, SETTLED = range(3)
STATES = {WRONG: "wrong", LUCKY: "right, but after a wrong one", SETTLED: "settled"}
TINTS = [tint(COLORS["jacobi"], 0.45), tint(COLORS["accepted"], 0.45)]
WINDOWS, NGRAMS, GUESSES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20), (3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 7, 10, 15, 20)


def trajectory_states(rounds: Sequence[Sequence[int]]) -> list[list[int]]:
    """State of every token in every Jacobi iteration: WRONG, LUCKY or SETTLED (all before it right).

    The last iteration is taken as the solution.
    """
    solution, states = list(rounds[-1]), []
    for row in rounds:
        right = [a == b for a, b in zip(row, solution, strict=True)]
        states.append([SETTLED if all(right[: i + 1]) else LUCKY if ok else WRONG for i, ok in enumerate(right)])
    return states


def plot_trajectory(rounds: Sequence[Sequence[int]], words: Callable[[int], str] = str) -> Axes:
    """Jacobi iterations from the top: the initial guess, each refinement, the solution. rounds: rows of m ids.

    words: id -> label of the cell; six letters fit it up to m = 8.
    """
    m = len(rounds[0])
    ax = axes((min(WIDTH, max(5.2, 1.2 + 0.65 * m)), 1.3 + 0.3 * len(rounds)))
    plot_cells(trajectory_states(rounds), TINTS, ax, aspect="auto")
    for k, row in enumerate(rounds):
        for i, token in enumerate(row):
            ax.text(i, k, words(token), ha="center", va="center", fontsize=SMALL, color=INK)
    ax.set_xticks(range(m), range(1, m + 1))
    ax.set_yticks(range(len(rounds)), ["initial", *range(1, len(rounds))])
    ax.set(xlabel="position after the prompt", ylabel="round")
    shown = [Patch(facecolor=[PAPER, *TINTS][s], edgecolor=GREY, label=name) for s, name in STATES.items()]
    ax.legend(handles=shown, ncols=3, fontsize=9, **ABOVE)
    return ax


def lookahead_mask(W: int, N: int, G: int) -> tuple[Tensor, list[str], list[int]]:
    """The decoding loop's own mask of one lookahead step -> allow (T, T), names (T), offsets from the root (T).

    T = (W + G)(N - 1): the root, G n-grams without a common prefix (A1 A2 ..), the window (row,column). W, N, G: as in
    Lookahead.
    """
    tree, (behind, sees) = DraftTree(), window_layout(W, N)
    for a in range(G):
        tree.add_chain(a * N + k for k in range(1, N))
    tree.add_side(SideTokens([0] * len(behind), behind, sees))
    allow = tree_mask(1, tree, cached=0)
    ngrams = [f"{chr(ord('A') + a)}{k}" for a in range(G) for k in range(1, N)]
    window = [f"{r},{i}" for r in range(N - 1) for i in range(W)][1:]
    return allow, ["root", *ngrams, *window], [0, *tree.depths, *behind]


def draw_lookahead(v: WidthCurve, W: int, N: int, G: int) -> tuple[Axes, str]:
    """The mask of a step, rows labelled with their offset from the root.

    The title shows the step's width, and the tokens per step from which it pays.
    """
    allow, names, offsets = lookahead_mask(W, N, G)
    kinds = [1, *[2] * (G * (N - 1)), *[3] * (W * (N - 1) - 1)]  # kind of the key token
    colors = {"root": INK, "n-grams to verify": COLORS["accepted"], "window": COLORS["lookahead"]}
    rows = [f"{name}  +{offset}" for name, offset in zip(names, offsets, strict=True)]
    ax = plot_mask(allow, kinds, list(colors.values()), names, rows, axes((WIDTH, 5.8)))
    ax.set(xlabel="may look at", ylabel="token, and where it stands")
    patches = [Patch(color=color, label=name) for name, color in colors.items()]
    ax.legend(handles=patches, loc="upper right", fontsize=SMALL)
    fed = (W + G) * (N - 1)  # n-grams without a common prefix, root included
    size, price = f"{fed} tokens fed, at most {N} committed", f"pays above {width_cost(v)(fed):.2f} tokens a step"
    ax.set_title(f"{size}\n{price}", fontsize=FONT_SIZE)
    return ax, (
        f"Mask of a lookahead step with W={W}, N={N}, G={G}: {size}; {price}. Each n-gram sees itself and "
        "the root; each window token sees the top row up to its column, then its own column."
    )


def show_lookahead(v: WidthCurve, W: int, N: int, G: int) -> None:
    """Sliders for W, N and G; shows the mask. v: the machine's measured width curve, {w: v}."""
    controls = {
        "W": Slider("W, columns of the window", WINDOWS, W),
        "N": Slider("N, tokens of an n-gram", NGRAMS, N),
        "G": Slider("G, n-grams verified", GUESSES, G),
    }
    show(controls, partial(draw_lookahead, v))
