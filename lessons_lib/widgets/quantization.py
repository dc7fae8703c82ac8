"""Lesson 10's widget: a format, its bits and its groups; what they do to weights, to a model and to its speed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from matplotlib.figure import Figure
from torch import Tensor

from lessons_lib.figures.quantization import plot_rounding
from lessons_lib.measure.config import ModelConfig
from lessons_lib.quantization.formats import bits_of, relative_error, round_trip
from lessons_lib.quantization.sizes import bytes_in
from lessons_lib.widgets.controls import Slider, show

FORMATS = ("minimum", "absmax", "nf4", "fp8")
BITS = (2, 3, 4, 5, 6, 7, 8)
GROUPS = (32, 64, "row")  # which divide the rows of the small models here
HEAD = "int8"  # format of the LM head, whatever the layers have


def name_of(format: str, bits: int, group: int | str) -> str:
    """The format's name in `quantization.formats`. NF4 and fp8 have a width of their own, and NF4 groups of its own."""
    per = group if group == "row" else f"g{group}"
    if format == "nf4":
        return f"nf4 {'g192' if per == 'row' else per} double"
    return f"fp8 {per}" if format == "fp8" else f"int{bits} {per} {format}"


def names() -> list[str]:
    """All formats that the sliders reach, each once."""
    return list(dict.fromkeys(name_of(*setting) for setting in product(FORMATS, BITS, GROUPS)))


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

    weight (N, K). perplexities: name of a format -> perplexity of the model with all layers rounded to it; exact:
    unrounded.
    """

    weight: Tensor
    shape: ModelConfig
    machine: Machine
    perplexities: Mapping[str, float]
    exact: float


def moved(shape: ModelConfig, name: str) -> float:
    """Bytes of weights that a step reads, the layers in this format and the head in int8.

    ValueError for a name that is no format, or whose groups do not divide the rows of a matrix.
    """
    return bytes_in(shape, partial(bits_of, name), partial(bits_of, HEAD))


def headline(subject: Subject, format: str, bits: int, group: int | str) -> str:
    """Bits a weight, error, perplexity, bytes, predicted tokens a second. ValueError as `moved`."""
    name = name_of(format, bits, group)
    found = subject.perplexities.get(name)
    quality = "perplexity not measured" if found is None else f"perplexity {found:.4g} ({subject.exact:.4g} unrounded)"
    error, read = relative_error(subject.weight, round_trip(subject.weight, name)), moved(subject.shape, name)
    return (
        f"{name}: {bits_of(name, subject.weight.shape[1]):.2f} bits a weight, error {error:.2%}, {quality}, "
        f"{read / 1e6:.1f} MB a step, {subject.machine.tokens_per_second(read):.0f} tokens/s predicted"
    )


def draw_quantization(subject: Subject, format: str, bits: int, group: int | str) -> Figure:
    """Values and errors under the headline; ValueError as `moved`."""
    figure = plot_rounding(subject.weight, round_trip(subject.weight, name_of(format, bits, group)))
    figure.suptitle(headline(subject, format, bits, group).replace("%, ", "%,\n"), fontsize=10)
    return figure


def describe_quantization(subject: Subject, format: str, bits: int, group: int | str) -> str:
    """The figure in words; ValueError as `moved`."""
    return (
        f"Weights of one matrix of {subject.shape.name} before and after rounding, and the errors. "
        f"{headline(subject, format, bits, group)}."
    )


def show_quantization(subject: Subject, format: str = "minimum", bits: int = 4, group: int | str = 32) -> None:
    """Sliders for format, bits and group size over a matrix of the subject.

    ValueError for a start that is not in FORMATS, BITS or GROUPS, and for groups that do not divide the rows.
    """
    controls = {
        "format": Slider("format", FORMATS, format),
        "bits": Slider("bits", BITS, bits),
        "group": Slider("group", GROUPS, group),
    }
    show(controls, partial(draw_quantization, subject), partial(describe_quantization, subject))
