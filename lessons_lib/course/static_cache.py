"""Figure and widget of the lesson on static caches and torch.compile: when compiling pays for itself."""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.course.figures import COLORS, INK, LIFTED, Row, axes
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.cost import break_even_tokens

HORIZONS = tuple(2**k for k in range(7, 18))
SHARES = (0, 25, 50, 75, 90, 100)


def crossings(rows: Sequence[Row]) -> dict[str, float]:
    """For each method but the first, the number of tokens from which it is faster; infinity if it never is."""
    first, *others = rows
    starts = {row["method"]: row["startup"] - first["startup"] for row in others}
    return {m["method"]: break_even_tokens(starts[m["method"]], first["per_token"], m["per_token"]) for m in others}


def plot_break_even(rows: Sequence[Row], tokens: int) -> Axes:
    """Total time against the number of new tokens, up to `tokens`, for methods with a start-up cost (compiling).

    rows: `method`, `startup` and `per_token` in seconds. The first is the baseline; a dot marks where another one
    overtakes it.
    """
    ax, first = axes(), rows[0]
    for row in rows:
        ends = [row["startup"], row["startup"] + tokens * row["per_token"]]
        ax.plot([0, tokens], ends, color=COLORS[row["method"]], label=row["method"])
    marked = sorted(at for at in crossings(rows).values() if 0 < at <= tokens)
    for at in marked:
        seconds = first["startup"] + at * first["per_token"]
        ax.plot([at], [seconds], "o", color=INK, zorder=3)
        ax.plot([at, at], [0, seconds], ":", color=INK)
        left = at > 0.7 * tokens or 0.2 * tokens < at < marked[-1]  # the next number is right of the next dot
        shift, align = ((-8, 4), "right") if left else ((8, -14), "left")
        where = dict(textcoords="offset points", color=INK, ha=align, bbox=LIFTED)
        ax.annotate(f"{at:,.0f} tokens", (at, seconds), shift, **where)
    ax.set(xlabel="new tokens", ylabel="total time [s]", xlim=(0, tokens), ylim=(0, None))
    ax.legend(loc="upper left")
    return ax


def draw_break_even(rows: Sequence[Row], tokens: int, warm: int) -> tuple[Axes, str]:
    """plot_break_even with `warm` per cent of every start-up saved by the compiler's cache."""
    rows = [row | {"startup": row["startup"] * (1 - warm / 100)} for row in rows]
    said = [f"{m} never" if at == math.inf else f"{m} after {at:,} tokens" for m, at in crossings(rows).items()]
    alt = f"Total time for up to {tokens:,} tokens; it overtakes {rows[0]['method']}: {', '.join(said)}."
    return plot_break_even(rows, tokens), alt


def show_break_even(rows: Sequence[Row], tokens: int) -> None:
    """Sliders over plot_break_even: the number of tokens, and the share of compiling that a warm cache saves.

    tokens: initial value, rounded up to one of HORIZONS.
    """
    start = next((horizon for horizon in HORIZONS if horizon >= tokens), HORIZONS[-1])
    controls = {
        "tokens": Slider("new tokens up to", HORIZONS, start),
        "warm": Slider("compile time saved", SHARES, 0, "%"),
    }
    show(controls, partial(draw_break_even, rows))
