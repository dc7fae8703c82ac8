"""Figures and widget of the quantization lesson: levels, rounding errors, outliers, quality against bits."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lessons_lib.course.figures import (
    ABOVE,
    BLUE,
    CYCLE,
    GREY,
    INK,
    ORANGE,
    WIDTH,
    Row,
    axes,
    grouped,
    look,
    plot_lines,
    tint,
)
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.config import ModelConfig
from lessons_lib.quantization.formats import bits_of, relative_error, round_trip
from lessons_lib.quantization.sizes import step_bytes


def plot_levels(levels: Mapping[str, Sequence[float]]) -> Axes:
    """The values each format has between -1 and 1, as a line of ticks over a normal distribution."""
    ax = axes((6.4, 0.5 + 0.55 * len(levels)))
    for place, values in enumerate(levels.values()):
        wide = 1.2 if len(values) < 40 else 0.5
        ax.vlines(list(values), place - 0.32, place + 0.32, CYCLE[place % len(CYCLE)], linewidth=wide)
    at, floor = [k / 100 - 1 for k in range(201)], len(levels) - 0.5
    heights = [floor - len(levels) * math.exp(-4.5 * x * x) for x in at]  # the axis covers three standard deviations
    ax.fill_between(at, floor, heights, color=tint(GREY, 0.12), linewidth=0, zorder=0)
    ax.set_yticks(range(len(levels)), [f"{name}\n{len(values)} levels" for name, values in levels.items()])
    ax.set(xlabel="value over the largest of its group", xlim=(-1.03, 1.03), ylim=(floor, -0.5))
    ax.grid(False)
    return ax


def plot_rounding(x: Tensor, rounded: Tensor) -> Figure:
    """Above: histogram before and after rounding. Below: the errors. x, rounded: any equal shape."""
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 5.6), layout="compressed")
    stride = max(1, x.numel() // 200_000)  # more values are subsampled for drawing
    x, rounded = (part.detach().flatten()[::stride].float().cpu() for part in (x, rounded))
    most = float(x.abs().quantile(0.999))
    upper.hist(x.tolist(), 80, range=(-most, most), color=tint(BLUE, 0.45), label="as they were")
    upper.hist(rounded.tolist(), 80, range=(-most, most), histtype="step", color=ORANGE, label="rounded")
    upper.set(xlabel="value", ylabel="weights")
    upper.legend(fontsize=9)
    errors = rounded - x
    wide = float(errors.abs().max())
    lower.hist(errors.tolist(), 80, range=(-wide, wide), color=ORANGE)
    lower.set(xlabel="error")
    lower.ticklabel_format(axis="x", style="sci", scilimits=(-3, 3))
    return figure


def plot_dots(rows: Sequence[Row], x: str) -> Axes:
    """A line for each `label`, with a dot for each `method` at the value under x, which names the axis."""
    labels = list(grouped(rows, "label"))
    ax = axes((6.4, 1.1 + 0.34 * len(labels)))
    for i, (method, group) in enumerate(grouped(rows, "method").items()):
        color, marker = look(i)
        places = [labels.index(row["label"]) for row in group]
        ax.plot([row[x] for row in group], places, marker, color=color, label=method)
    ax.set_yticks(range(len(labels)), labels)
    ax.set(xlabel=x, ylim=(len(labels) - 0.5, -0.5))
    ax.legend(ncols=5, fontsize=9, **ABOVE)
    return ax


def plot_groups(rows: Sequence[Row], y: str) -> Axes:
    """A line for each `label` against the group size. rows: `label`, `group`, and the value under y."""
    ax = plot_lines(rows, "group", y, "log")
    ax.set_xlabel("weights in a group, g")
    return ax


def plot_duel(rows: Sequence[Row], x: str, y: str) -> Axes:
    """Each row as a dot at its values under x and y, with the line of equal values; below the line y is smaller.

    rows: `label`, which has its own colour and marker, and both values.
    """
    ax = axes((5.6, 4.4))
    for i, (label, group) in enumerate(grouped(rows, "label").items()):
        color, marker = look(i)
        dots = dict(color=color, label=label, markersize=5, alpha=0.75)
        ax.plot([row[x] for row in group], [row[y] for row in group], marker, **dots)
    end = 1.05 * max(row[key] for row in rows for key in (x, y))
    ax.plot([0, end], [0, end], ":", color=INK)
    ax.set(xlabel=x, ylabel=y, xlim=(0, end), ylim=(0, end))
    ax.legend(fontsize=9)
    return ax


def plot_channels(maxima: Mapping[str, Tensor], y: str) -> Axes:
    """A value for each channel, a line for each name; channels are sorted by the first name's values, largest first.

    maxima: name -> (K,). y names the axis.
    """
    ax = axes((6.4, 3.4))
    order = next(iter(maxima.values())).argsort(descending=True)
    for (name, values), color in zip(maxima.items(), CYCLE, strict=False):
        at = range(1, 1 + len(order))
        ax.plot(at, values[order].tolist(), color=color, linewidth=1, label=name, alpha=0.85)
    ax.set(xlabel="channel, loudest first", ylabel=y, xscale="log", yscale="log")
    ax.legend(fontsize=9)
    return ax


FORMATS = ("affine", "absmax", "nf4", "fp8")
BITS = (2, 3, 4, 5, 6, 7, 8)
GROUPS = (32, 64, "row")  # these divide the rows of the small models here


def name_of(format: str, bits: int, group: int | str) -> str:
    """The format's name in `quantization.formats`. NF4 and fp8 have a fixed width, and NF4 fixed groups."""
    per = group if group == "row" else f"g{group}"
    if format == "nf4":
        return f"nf4 {'g192' if per == 'row' else per}"
    return f"fp8 {per}" if format == "fp8" else f"int{bits} {per} {format}"


def names() -> list[str]:
    """All formats that the sliders can select, each once."""
    return list(dict.fromkeys(name_of(*setting) for setting in product(FORMATS, BITS, GROUPS)))


def draw_quantization(
    weight: Tensor,
    shape: ModelConfig,
    speed: Callable[[float], float],
    perplexities: Mapping[str, float],
    format: str,
    bits: int,
    group: int | str,
) -> tuple[Figure, str]:
    """Values and errors; the title shows bits per weight, error, perplexity, bytes and predicted tokens per second."""
    name = name_of(format, bits, group)
    rounded, read = round_trip(weight, name), step_bytes(shape, name, "int8")  # the head in int8
    error = f"{name}: {bits_of(name, weight.shape[1]):.2f} bits a weight, error {relative_error(weight, rounded):.2%},"
    quality = "perplexity not measured"
    if name in perplexities:
        quality = f"perplexity {perplexities[name]:.4g} ({perplexities['exact']:.4g} unrounded)"
    said = f"{quality}, {read / 1e6:.1f} MB a step, {speed(read):.0f} tokens/s predicted"
    figure = plot_rounding(weight, rounded)
    figure.suptitle(f"{error}\n{said}", fontsize=10)
    return figure, (f"Weights of one matrix of {shape.name} before and after rounding, and the errors. {error} {said}.")


def show_quantization(
    weight: Tensor, shape: ModelConfig, speed: Callable[[float], float], perplexities: Mapping[str, float]
) -> None:
    """Sliders for format, bits and group size; shows their effect on one matrix of a model, weight (N, K).

    speed: bytes read per step -> tokens per second. perplexities: name of a format -> measured perplexity of the model
    with all layers rounded to it; "exact": unrounded.
    """
    controls = {
        "format": Slider("format", FORMATS, "affine"),
        "bits": Slider("bits", BITS, 4),
        "group": Slider("group", GROUPS, 32),
    }
    show(controls, partial(draw_quantization, weight, shape, speed, perplexities))
