"""Lesson 12's widget: what skipping can gain at most, by how much is zero, who knows it when, and for how many rows."""

from functools import partial
from textwrap import fill

from matplotlib.axes import Axes

from lessons_lib.figures.sparsity import plot_limits
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.sparsity import skippable, speedup, union
from lessons_lib.widgets.controls import Slider, show

PERCENT = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
NAMES = {
    "mlp": "MLP, known beforehand",
    "gate first": "gate computed first",
    "intermediate": "intermediate vector first",
    "inputs": "inputs of every product",
}


def headline(shape: ModelConfig, percent: int, rows: int) -> str:
    """What all rows together can skip, and the limits. ValueError for a model without a gated MLP."""
    skipped = 1 - union(percent / 100, rows)
    limits = ", ".join(f"{speedup(skippable(shape, known), skipped):.2f} ({name})" for known, name in NAMES.items())
    each = "one row" if rows == 1 else f"each of {rows} rows"
    return f"{percent}% zero in {each}: {skipped:.0%} skipped by all; times as fast at most: {limits}"


def draw_limits(shape: ModelConfig, percent: int, rows: int) -> Axes:
    """The limits against sparsity under the headline; ValueError for a model without a gated MLP."""
    ax = plot_limits({name: skippable(shape, known) for known, name in NAMES.items()}, percent / 100, rows)
    ax.set_title(fill(headline(shape, percent, rows), 72), fontsize=9)
    return ax


def describe_limits(shape: ModelConfig, percent: int, rows: int) -> str:
    """The figure in words; ValueError for a model without a gated MLP."""
    said = headline(shape, percent, rows)
    return f"Largest possible speed-up of a decode step of {shape.name} against sparsity. {said}."


def show_limits(shape: ModelConfig) -> None:
    """Sliders for the sparsity of one row and the rows of a step. ValueError for a model without a gated MLP."""
    controls = {
        "percent": Slider("sparsity of one row", PERCENT, 50, "%"),
        "rows": Slider("rows in one step", ROWS, 1),
    }
    show(controls, partial(draw_limits, shape), partial(describe_limits, shape))
