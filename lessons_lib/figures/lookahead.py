"""Jacobi trajectories, lookahead's mask and pool, and where wider forwards pay (lesson 08)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from lessons_lib.caches.cache import causal_mask
from lessons_lib.decoding.blocks import tree_mask
from lessons_lib.decoding.draft_tree import Proposal, Scratch, Tree
from lessons_lib.decoding.proposers.lookahead import branches, window_layout
from lessons_lib.figures.masks import name_tokens, plot_mask, rule
from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import (
    ABOVE,
    COLORS,
    CYCLE,
    FONT_SIZE,
    GREY,
    INK,
    LIFTED,
    PAPER,
    SMALL,
    WIDTH,
    axes,
    color,
    panels,
    tint,
)
from lessons_lib.measure.speculation import WidthCurve, width_cost

WRONG, LUCKY, SETTLED = range(3)
STATES = {WRONG: "wrong", LUCKY: "right, but behind a wrong one", SETTLED: "settled"}
TINTS = [PAPER, tint(COLORS["jacobi"], 0.45), tint(COLORS["accepted"], 0.45)]


def trajectory_states(rounds: Sequence[Sequence[int]]) -> list[list[int]]:
    """What became of every token of every round, judged by the last: WRONG, LUCKY or SETTLED (all before it right).

    rounds: rows of m ids, at least one. ValueError for rows of unequal length.
    """
    solution, states = list(rounds[-1]), []
    for row in rounds:
        right = [a == b for a, b in zip(row, solution, strict=True)]
        states.append([SETTLED if all(right[: i + 1]) else LUCKY if ok else WRONG for i, ok in enumerate(right)])
    return states


def plot_trajectory(rounds: Sequence[Sequence[int]], words: Callable[[int], str] = str) -> Axes:
    """Jacobi's rounds from the top: the guess, each refinement, the solution. rounds: rows of m ids.

    words: id -> what stands in the cell; six letters fit it up to m = 8. ValueError for rows of unequal length.
    """
    m = len(rounds[0])
    ax = axes((min(WIDTH, max(5.2, 1.2 + 0.65 * m)), 1.3 + 0.3 * len(rounds)))
    ax.imshow(trajectory_states(rounds), cmap=ListedColormap(TINTS), vmin=0, vmax=2, aspect="auto")
    for k, row in enumerate(rounds):
        for i, token in enumerate(row):
            ax.text(i, k, words(token), ha="center", va="center", fontsize=SMALL, color=INK)
    ax.set_xticks(range(m), range(1, m + 1))
    ax.set_yticks(range(len(rounds)), ["guess", *range(1, len(rounds))])
    rule(ax, m, len(rounds))
    ax.set(xlabel="position behind the prompt", ylabel="round")
    shown = [Patch(facecolor=TINTS[s], edgecolor=GREY, label=name) for s, name in STATES.items()]
    ax.legend(handles=shown, ncols=3, fontsize=9, **ABOVE)
    return ax


def lookahead_mask(W: int, N: int, G: int) -> tuple[Tensor, list[str], list[int]]:
    """The loop's own mask of one lookahead step -> allow (T, T), names (T), offsets from the anchor (T).

    T = (W + G)(N - 1): the anchor, G n-grams without a common beginning (A1 A2 ..), the window (row,column).
    W, N, G: as Lookahead takes them.
    """
    tokens, parents = branches([[a * N + k for k in range(1, N)] for a in range(G)])
    tree, (behind, sees) = Tree.of(Proposal(tokens, parents), N), window_layout(W, N)
    allow = tree_mask(1, tree, Scratch([0] * len(behind), behind, sees), cached=0)
    ngrams = [f"{chr(ord('A') + a)}{k}" for a in range(G) for k in range(1, N)]
    window = [f"{r},{i}" for r in range(N - 1) for i in range(W)][1:]
    return allow, ["anchor", *ngrams, *window], [0, *tree.depths, *behind]


def plot_branch_mask(W: int = 5, N: int = 4, G: int = 2, ax: Axes | None = None) -> Axes:
    """The mask of one lookahead step; rows are labelled with their offset from the anchor. W, N, G: as Lookahead."""
    allow, names, offsets = lookahead_mask(W, N, G)
    kinds = [1, *[2] * (G * (N - 1)), *[3] * (W * (N - 1) - 1)]  # of the token that is looked at
    shown = {"anchor": INK, "n-grams to verify": COLORS["accepted"], "window": COLORS["lookahead"]}
    ax = plot_mask(allow, kinds, list(shown.values()), ax)
    rows = [f"{name}  +{offset}" for name, offset in zip(names, offsets, strict=True)]
    name_tokens(ax, names, rows)
    ax.set(xlabel="may look at", ylabel="token, and where it stands")
    patches = [Patch(color=shade, label=name) for name, shade in shown.items()]
    ax.legend(handles=patches, loc="upper right", fontsize=SMALL)
    return ax


def plot_masks(W: int = 5, N: int = 4, G: int = 2) -> Figure:
    """Above each other: the causal mask of as many tokens in a row, and the mask of one lookahead step."""
    upper, lower = panels(2, (WIDTH, 12), 1)
    T = (W + G) * (N - 1)
    plot_mask(causal_mask(T, T), [1] * T, [COLORS["cache"]], upper)
    name_tokens(upper, [str(i) for i in range(T)], [f"+{i}" for i in range(T)])
    upper.set_title(f"causal: {T} tokens in a row", fontsize=FONT_SIZE)
    plot_branch_mask(W, N, G, lower).set_title(f"lookahead: W={W}, N={N}, G={G}", fontsize=FONT_SIZE)
    return lower.figure


def plot_pool_growth(rows: Iterable[Any]) -> Axes:
    """n-grams in the pool after each step, a line per prompt; dots where a step committed more than one token.

    rows: `prompt`, `step`, `ngrams`, `committed`. ValueError without rows.
    """
    ax = axes()
    for shade, (prompt, group) in zip(CYCLE, by_key(as_dicts(rows), "prompt").items(), strict=False):
        ax.plot([r["step"] for r in group], [r["ngrams"] for r in group], color=shade, label=prompt)
        hits = [r for r in group if r["committed"] > 1]
        ax.scatter([r["step"] for r in hits], [r["ngrams"] for r in hits], [12 * r["committed"] for r in hits], shade)
    ax.set(xlabel="step", ylabel="n-grams in the pool", xlim=(0, None), ylim=(0, None))
    ax.legend(title="dots: more than one token committed,\nlarger for more")
    return ax


def plot_payoff(rows: Iterable[Any], v: WidthCurve) -> Axes:
    """Tokens committed per forward against tokens fed, and what so wide a forward costs: above the line pays.

    rows: `method`, `label`, `width` (tokens fed per forward), `tokens` (committed per forward). v: the width curve.
    ValueError without rows, KeyError for a method without a colour.
    """
    ax, rows = axes(), as_dicts(rows)
    cost, widest = width_cost(v), max(row["width"] for row in rows)
    at = [1 + (1.1 * widest - 1) * k / 99 for k in range(100)]
    ax.plot(at, [cost(w) for w in at], color=COLORS["limit"], label="v(w): must be exceeded to gain")
    for method, group in by_key(rows, "method").items():
        ax.scatter([r["width"] for r in group], [r["tokens"] for r in group], 36, color(method), label=method)
    for row in rows:
        near = [(r["tokens"], r["width"]) for r in rows if abs(r["width"] - row["width"]) < widest / 8]
        place = (5, 5 if (row["tokens"], row["width"]) == max(near) else -14)  # so that neighbours' do not meet
        at = (row["width"], row["tokens"])
        ax.annotate(row["label"], at, place, textcoords="offset points", fontsize=9, bbox=LIFTED)
    ax.set(xlabel="tokens fed per forward, w", ylabel="tokens committed per forward", xlim=(0, None), ylim=(0, None))
    ax.legend(loc="lower right")
    return ax
