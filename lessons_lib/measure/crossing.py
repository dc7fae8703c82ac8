"""From how many tokens on a technique pays (lessons 02, 03): a measured curve's crossing, and an expensive start's."""

from __future__ import annotations

import math
from collections.abc import Sequence


def crossing(at: Sequence[float], values: Sequence[float], level: float) -> float:
    """The point from which on `values` stays at or above `level`, between two points on a logarithmic axis.

    at: ascending and positive, as many as values. The first point if no value lies below; NaN if the last one does.
    IndexError for no or missing points.
    """
    above = max((i + 1 for i, value in enumerate(values) if value < level), default=0)
    if above in (0, len(values)):
        return math.nan if above else float(at[0])
    share = (level - values[above - 1]) / (values[above] - values[above - 1])
    return at[above - 1] * (at[above] / at[above - 1]) ** share


def break_even_tokens(startup: float, slow: float, fast: float) -> float:
    """Tokens after which `startup` seconds are earned back, at `slow` and `fast` seconds a token; inf if never.

    >>> break_even_tokens(60, 0.04, 0.01)
    2000
    """
    gain = slow - fast
    return math.ceil(round(startup / gain, 6)) if gain > 0 else 0 if startup <= 0 else math.inf
