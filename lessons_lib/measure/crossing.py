"""Where a measured curve crosses a level (lesson 02): the length from which on a technique pays."""

from __future__ import annotations

from collections.abc import Sequence


def crossing(at: Sequence[float], values: Sequence[float], level: float) -> float:
    """The point from which on `values` stays at or above `level`, between two points on a logarithmic axis.

    at: ascending and positive, as many as values. The first point if no value lies below; NaN if the last one does.
    """
    above = max((i + 1 for i, value in enumerate(values) if value < level), default=0)
    if above in (0, len(values)):
        return float("nan") if above else float(at[0])
    share = (level - values[above - 1]) / (values[above] - values[above - 1])
    return at[above - 1] * (at[above] / at[above - 1]) ** share
