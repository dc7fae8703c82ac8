"""Widget of the lesson on effective sparsity: the most that skipping can gain."""

from functools import partial
from textwrap import fill

from matplotlib.axes import Axes

from lessons_lib.course.figures import CYCLE, GREY, axes
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.sparsity import skippable, speedup, union

PERCENT = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
NAMES = {
    "mlp": "MLP, known beforehand",
    "gate first": "gate computed first",
    "intermediate": "intermediate vector first",
    "inputs": "inputs of every matmul",
}


def draw_limits(shape: ModelConfig, percent: int, rows: int) -> tuple[Axes, str]:
    """Upper bounds on the gain of skipping S in a step of `rows` tokens, by what is known in advance.

    The tokens' patterns are independent, and only what no token needs is skipped: S^rows. A dot marks the chosen
    percent.
    """
    ax, levels, limits = axes(), [k / 100 for k in range(100)], []
    for color, (known, name) in zip(CYCLE, NAMES.items(), strict=False):
        share = skippable(shape, known)
        gains = [speedup(share, 1 - union(s, rows)) for s in (*levels, percent / 100)]
        ax.plot(levels, gains[:-1], color=color, label=name)
        ax.plot([percent / 100], gains[-1:], "o", color=color)
        limits.append(f"{gains[-1]:.2f} ({name})")
    ax.axvline(percent / 100, color=GREY, linewidth=1)
    ax.set(xlabel="sparsity of one row, S", ylabel="times as fast, at most", xlim=(0, 1), ylim=(1, None))
    ax.legend(fontsize=9)
    each, skipped = "one row" if rows == 1 else f"each of {rows} rows", 1 - union(percent / 100, rows)
    said = f"{percent}% zero in {each}: {skipped:.0%} skipped by all; times as fast at most: {', '.join(limits)}"
    ax.set_title(fill(said, 72), fontsize=9)
    return ax, f"Largest possible speed-up of a decode step of {shape.name} against sparsity. {said}."


def show_limits(shape: ModelConfig) -> None:
    """Sliders for the sparsity and the number of tokens per step; shows the limits. The model needs a gated MLP."""
    controls = {
        "percent": Slider("sparsity of one row", PERCENT, 50, "%"),
        "rows": Slider("rows in one step", ROWS, 1),
    }
    show(controls, partial(draw_limits, shape))
