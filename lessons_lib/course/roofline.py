"""Figures of the roofline lesson: the attainable speed of a calculation, given its FLOPs per byte moved.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model" (2009).
"""

from collections.abc import Sequence

from matplotlib.axes import Axes

from lessons_lib.course.figures import COLORS, LIFTED, PAPER, WIDTH, Row, axes
from lessons_lib.measure.machine import Hardware

GIGA = 1e9


def plot_roofline(hardware: Hardware, points: Sequence[Row]) -> Axes:
    """Log-log roofline in GFLOP/s against FLOP per byte: a roof per dtype with its ridge point, and `points`.

    A dtype's roof rises with its matvec_bandwidth up to its matmul_flops; the read and copy bandwidths are dotted.
    points: `name`, `intensity` in FLOP/byte, `rate` in FLOP/s, and `method` (for the colour).
    """
    ax = axes((WIDTH, 4.6))
    fastest = max(hardware.matmul_flops.values())
    left = min([0.25, *(p["intensity"] / 2 for p in points)])
    right = max([4 * fastest / min(hardware.matvec_bandwidth.values()), *(2 * p["intensity"] for p in points)])
    for name, bandwidth, style in (("read", hardware.read_bandwidth, ":"), ("copy", hardware.copy_bandwidth, "-.")):
        ends, label = [left, fastest / bandwidth], f"{name} {bandwidth / GIGA:,.0f} GB/s"
        speeds = [intensity * bandwidth / GIGA for intensity in ends]
        ax.plot(ends, speeds, style, color=COLORS["limit"], linewidth=1.2, label=label)
    for number, (dtype, flops) in enumerate(hardware.matmul_flops.items()):
        bandwidth, top, ridge = hardware.matvec_bandwidth[dtype], flops / GIGA, hardware.ridge(dtype)
        label = f"{dtype} {bandwidth / GIGA:,.0f} GB/s, {top:,.0f} GFLOP/s"
        ax.plot([left, ridge, right], [left * bandwidth / GIGA, top, top], color=COLORS[dtype], label=label)
        ax.plot([ridge], [top], "D", color=COLORS[dtype])
        shift = (0, 7) if number % 2 else (8, -15)  # labels of neighbours alternate above and below
        where = dict(textcoords="offset points", color=COLORS[dtype], bbox=LIFTED)
        ax.annotate(f"ridge {ridge:.1f}", (ridge, top), shift, **where)
    for point in points:
        color = COLORS[point["method"]]
        at = (point["intensity"], point["rate"] / GIGA)
        ax.plot(*at, "o", color=color, markeredgecolor=PAPER, markersize=9)
        shift, align = ((8, -13), "left") if at[0] ** 2 < left * right else ((-8, -13), "right")
        ax.annotate(point["name"], at, shift, textcoords="offset points", color=color, ha=align, bbox=LIFTED)
    ax.margins(y=0.1)  # room for labels below the lowest points
    ax.set(xscale="log", yscale="log", xlim=(left, right))
    ax.set(xlabel="arithmetic intensity [FLOP per byte moved]", ylabel="speed [GFLOP/s]")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.legend(loc="lower right")
    return ax
