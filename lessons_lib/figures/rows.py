"""What the figure functions of all lessons share: rows as dicts, and the spread of repeated measurements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.style import COLORS


def as_dicts(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Rows (mappings or dataclasses) -> dicts. Raises ValueError when there is nothing to draw."""
    dicts = [asdict(row) if is_dataclass(row) else dict(row) for row in rows]
    if not dicts:
        raise ValueError("nothing to draw: pass at least one row")
    return dicts


def by_key(rows: Iterable[Mapping[str, Any]], key: str) -> dict[Any, list[Mapping[str, Any]]]:
    """Rows grouped by the value of `key`, in order of first appearance."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def spread(samples: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Medians (n,), and their distances to minimum and maximum (2, n), as errorbar wants them."""
    middle = [median(s) for s in samples]
    below = [m - min(s) for m, s in zip(middle, samples, strict=True)]
    above = [max(s) - m for m, s in zip(middle, samples, strict=True)]
    return middle, [below, above]


def plot_spread(
    ax: Axes,
    at: Sequence[float],
    samples: Sequence[Sequence[float]],
    shade: str = COLORS["measured"],
    label: str = "measured",
    fmt: str = "o",
) -> list[float]:
    """Draw repeated measurements at their n places: the median, bars from minimum to maximum -> the medians (n,)."""
    middle, bars = spread(samples)
    ax.errorbar(at, middle, yerr=bars, fmt=fmt, capsize=3, color=shade, label=label)
    return middle
