"""The roofline of this machine (lesson 00): how fast a calculation can go, given FLOPs per byte moved.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model" (2009).
"""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.rows import as_dicts
from lessons_lib.figures.style import COLORS, INK, LIFTED, PAPER, WIDTH, axes, color

GIGA = 1e9


def plot_roofline(hardware: Any, points: Iterable[Any] = ()) -> Axes:
    """Log-log roofline in GFLOP/s against FLOP per byte: a roof per dtype, its ridge marked, `points` on it.

    hardware: as measure.probe returns it; a dtype's roof rises with its matvec_bandwidth up to its
    matmul_flops, and the bandwidth of reading and of copying is dotted. points: `name`, `intensity` in
    FLOP/byte, `rate` in FLOP/s, and where wanted `method` (for the colour). ValueError for hardware without any dtype,
    KeyError for a dtype or method without a colour.
    """
    ax = axes((WIDTH, 4.6))
    points = as_dicts(points) if points else []
    fastest = max(hardware.matmul_flops.values())
    left = min([0.25, *(p["intensity"] / 2 for p in points)])
    right = max([4 * fastest / min(hardware.matvec_bandwidth.values()), *(2 * p["intensity"] for p in points)])
    for name, bandwidth in (("read", hardware.read_bandwidth), ("copy", hardware.copy_bandwidth)):
        _slope(ax, name, bandwidth, left, fastest / bandwidth)
    for number, dtype in enumerate(hardware.matmul_flops):
        _roof(ax, hardware, dtype, left, right, above=number % 2 == 1)
    for point in points:
        _point(ax, point, beside="right" if point["intensity"] ** 2 < left * right else "left")
    ax.margins(y=0.1)  # room for the names below the lowest points
    ax.set(xscale="log", yscale="log", xlim=(left, right))
    ax.set(xlabel="arithmetic intensity [FLOP per byte moved]", ylabel="speed [GFLOP/s]")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.legend(loc="lower right")
    return ax


def _slope(ax: Axes, name: str, bandwidth: float, left: float, right: float) -> None:
    """Memory's limit, whatever is computed: speed = intensity times bandwidth."""
    speeds = [intensity * bandwidth / GIGA for intensity in (left, right)]
    style = ":" if name == "read" else "-."
    label = f"{name} {bandwidth / GIGA:,.0f} GB/s"
    ax.plot([left, right], speeds, style, color=COLORS["limit"], linewidth=1.2, label=label)


def _roof(ax: Axes, hardware: Any, dtype: str, left: float, right: float, above: bool) -> None:
    """One dtype's roof: up with the bandwidth of its one-row products, flat from the ridge point on."""
    bandwidth, flops = hardware.matvec_bandwidth[dtype], hardware.matmul_flops[dtype]
    ridge, top, shade = hardware.ridge(dtype), flops / GIGA, color(dtype)
    label = f"{dtype} {bandwidth / GIGA:,.0f} GB/s, {top:,.0f} GFLOP/s"
    ax.plot([left, ridge, right], [left * bandwidth / GIGA, top, top], color=shade, label=label)
    ax.plot([ridge], [top], "D", color=shade)
    shift = (0, 7) if above else (8, -15)
    ax.annotate(f"ridge {ridge:.1f}", (ridge, top), shift, textcoords="offset points", color=shade, bbox=LIFTED)


def _point(ax: Axes, point: dict[str, Any], beside: str) -> None:
    """A measured calculation, its name below it on the side where there is room."""
    shade = color(point["method"]) if "method" in point else INK
    at = (point["intensity"], point["rate"] / GIGA)
    ax.plot(*at, "o", color=shade, markeredgecolor=PAPER, markersize=9)
    shift, align = ((8, -13), "left") if beside == "right" else ((-8, -13), "right")
    ax.annotate(point["name"], at, shift, textcoords="offset points", color=shade, ha=align, bbox=LIFTED)
