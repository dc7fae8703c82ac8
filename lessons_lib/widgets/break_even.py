"""Lesson 03's widget: from how many tokens on compiling has paid for itself."""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.figures.latency import plot_break_even
from lessons_lib.measure.crossing import break_even_tokens
from lessons_lib.widgets.controls import Slider, show

HORIZONS = tuple(2**k for k in range(7, 18))
SHARES = (0, 25, 50, 75, 90, 100)


def with_warm_cache(rows: Sequence[dict], share: int) -> list[dict]:
    """The rows of plot_break_even (seconds) when the compiler's cache saves `share` per cent of every start."""
    return [row | {"startup": row["startup"] * (1 - share / 100)} for row in rows]


def draw_break_even(rows: Sequence[dict], tokens: int, warm: int) -> Axes:
    """Total time against new tokens, errors too, as plot_break_even draws it."""
    return plot_break_even(with_warm_cache(rows, warm), tokens)


def describe_break_even(rows: Sequence[dict], tokens: int, warm: int) -> str:
    """The figure in words; ValueError without rows."""
    first, *others = with_warm_cache(rows, warm)
    said = []
    for row in others:
        at = break_even_tokens(row["startup"] - first["startup"], first["per_token"], row["per_token"])
        said.append(f"{row['method']} never" if at == math.inf else f"{row['method']} after {at:,} tokens")
    return f"Total time for up to {tokens:,} tokens; it overtakes {first['method']}: {', '.join(said)}."


def show_break_even(rows: Sequence[dict], tokens: int) -> None:
    """Sliders over plot_break_even's rows: how many tokens, and how much of compiling a warm cache saves.

    tokens: where the first slider starts, rounded up to one of HORIZONS. ValueError without rows.
    """
    start = next((horizon for horizon in HORIZONS if horizon >= tokens), HORIZONS[-1])
    controls = {
        "tokens": Slider("new tokens up to", HORIZONS, start),
        "warm": Slider("compile time saved", SHARES, 0, "%"),
    }
    show(controls, partial(draw_break_even, rows), partial(describe_break_even, rows))
