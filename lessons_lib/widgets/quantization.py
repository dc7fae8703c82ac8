"""Lesson 10's widget: a format, its bits and its groups; what they do to weights, to a model and to its speed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure
from torch import Tensor

from lessons_lib.figures.quantization import plot_rounding
from lessons_lib.measure.kernels import matrices
from lessons_lib.measure.shape import ModelShape
from lessons_lib.quantization.checks import ROW
from lessons_lib.quantization.errors import FIXED, NAMES, bits_of, relative_error, round_trip
from lessons_lib.widgets.controls import Slider, show

BITS = (2, 3, 4, 5, 6, 7, 8)
GROUPS = (16, 32, 64, 192, ROW)  # which divide the rows of the small models here
Setting = tuple[str, int, str | int]


@dataclass(frozen=True)
class Machine:
    """What a step takes: seconds that do not depend on the weights' bytes, and bytes a second at which those come."""

    overhead: float
    bandwidth: float

    def tokens_per_second(self, moved: float) -> float:
        """Tokens a second of steps that read so many bytes."""
        return 1 / (self.overhead + moved / self.bandwidth)


@dataclass(frozen=True)
class Subject:
    """Whose rounding is shown: one matrix, the model's shape, the machine, and the perplexities that were measured.

    perplexities: (format, bits, group) -> perplexity of the model with all matrices rounded so; exact: unrounded.
    """

    weight: Tensor
    shape: ModelShape
    machine: Machine
    perplexities: Mapping[Setting, float]
    exact: float


def moved(shape: ModelShape, format: str, bits: int, group: str | int) -> float:
    """Bytes of weights that a step reads, layers and head in one format."""
    inside = sum(rows * columns * bits_of(format, bits, columns, group) for rows, columns in matrices(shape))
    return (shape.layers * inside + shape.head_weights * bits_of(format, bits, shape.width, group)) / 8


def headline(subject: Subject, format: str, bits: int, group: str | int) -> str:
    """Bits a weight, error, perplexity, bytes, predicted tokens a second."""
    bits = FIXED.get(format, bits)
    found = subject.perplexities.get((format, bits, group))
    quality = "perplexity not measured" if found is None else f"perplexity {found:.4g} ({subject.exact:.4g} unrounded)"
    read = moved(subject.shape, format, bits, group)
    error = relative_error(subject.weight, round_trip(subject.weight, format, bits, group))
    return (
        f"{_name(format, bits, group)}: {bits_of(format, bits, subject.weight.shape[1], group):.2f} bits a weight, "
        f"error {error:.2%}, {quality}, {read / 1e6:.1f} MB a step, "
        f"{subject.machine.tokens_per_second(read):.0f} tokens/s predicted"
    )


def draw_quantization(subject: Subject, format: str, bits: int, group: str | int) -> Figure:
    """Values and errors under the headline."""
    figure = plot_rounding(subject.weight, round_trip(subject.weight, format, FIXED.get(format, bits), group))
    figure.suptitle(headline(subject, format, bits, group).replace("%, ", "%,\n"), fontsize=10)
    return figure


def describe_quantization(subject: Subject, format: str, bits: int, group: str | int) -> str:
    """The figure in words."""
    return (
        f"Weights of one matrix of {subject.shape.name} before and after rounding, and the errors. "
        f"{headline(subject, format, bits, group)}."
    )


def show_quantization(subject: Subject, format: str = "minimum", bits: int = 4, group: str | int = 32) -> None:
    """Sliders for format, bits and group size over a matrix of the subject; NF4 and floats have their own width."""
    controls = {
        "format": Slider("format", NAMES, format),
        "bits": Slider("bits", BITS, bits),
        "group": Slider("group", GROUPS, group),
    }
    show(controls, partial(draw_quantization, subject), partial(describe_quantization, subject))


def _name(format: str, bits: int, group: str | int) -> str:
    width = "" if format in FIXED else f" of {bits} bits"
    return f"{format}{width}, {'a scale a row' if group == ROW else f'groups of {group}'}"
