"""A decoder with its matrices in few bits (lesson 10): products of its own, and nothing wide left where they serve."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lessons_lib import native
from lessons_lib.measure.profiler import give_back
from lessons_lib.models.calibrate import HEAD, MATRICES, Inputs, Place, Windows, inputs_of, largest, places
from lessons_lib.models.compensated import compensated
from lessons_lib.models.copies import sharing_copy
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.kernels import Kernels
from lessons_lib.models.smoothing import ALPHAS, awq, smoothed
from lessons_lib.progress import say
from lessons_lib.quantization.cpu import GROUP, Int8Both, Matrix, MixedProduct, WideColumns
from lessons_lib.quantization.formats import Quantized, quantize, rounding
from lessons_lib.quantization.linear import Grouped, Products, Values, weights_alone

Make = Callable[[Place, Tensor], Matrix | None]  # place and weight (N, K) -> what multiplies instead; None: the weight
FORMATS = ("int8", "int8-weight-only", "int4", "int4-int8")  # what targets are made with
WITH_FLOAT64 = ("cpu", "cuda")  # devices; what rounding is judged and calibrated in
SHORT = {"int8-weight-only": "int8", "int4": "int4 g32"}  # names of weights' formats that go by another name
BOTH, LLM_INT8, GROUPED = "int8", "llm.int8", "int4-int8"  # activations are rounded, too
COMPENSATED, SCALED = "gptq ", "awq "  # before the name of a format: what looks at inputs


@dataclass(frozen=True)
class Remedies:
    """What "int8" does beyond rounding weights and activations to 8 bits, by names of matrices.

    smooth: alpha of SmoothQuant. columns: how many of the loudest columns stay wide. Both need windows to calibrate
    with, and are left out without. terms: of 8 bits that activations are rounded to; nothing by default has two, which
    cost a second row of the product for each.
    """

    smooth: Mapping[str, float] = field(default_factory=lambda: dict(ALPHAS))
    columns: Mapping[str, int] = field(default_factory=lambda: {HEAD: 8})
    terms: Mapping[str, int] = field(default_factory=dict)


NONE = Remedies({}, {}, {})  # plain rounding


def quantized(
    decoder: Decoder,
    format: str = BOTH,
    *,
    head: str | None = "int8",
    windows: Windows = (),
    remedies: Remedies | None = None,
    values: bool = False,
) -> Decoder:
    """A decoder that computes with rounded matrices and shares all else with this one.

    format: "int8", weights and activations of 8 bits; "llm.int8"; "int4-int8", weights of 4 bits and activations of 8,
    both in groups of 32, the head's weights of 8; the weights alone: "int8-weight-only", "int4" (groups of 32 with a
    minimum) or any name of `quantization.formats`, "gptq " or "awq " before it. head: the format of the LM head beside
    layers of which the weights alone are rounded; None leaves it as it is. windows: ids to calibrate with, for GPTQ,
    AWQ and the remedies (None: those of `Remedies()`) of "int8". values: weights that alone are rounded are given back
    their rounded values once, as wide and as fast as they were: to measure quality. ValueError for unknown names, for
    GPTQ and AWQ without windows, for groups that do not fit, a decoder that is rounded already, and devices other than
    CPU and CUDA.
    """
    _check(decoder)
    give_back()  # what others left; rounding leaves more
    try:
        if format == BOTH:
            return _both(decoder, windows, Remedies() if remedies is None else remedies)
        if format == LLM_INT8:
            return replaced(decoder, lambda place, weight: MixedProduct(weight))
        if format == GROUPED:
            return _both_in_groups(decoder)
        return _rounded(decoder, format, head, windows, Values if values else weights_alone)
    finally:
        give_back()


def replaced(decoder: Decoder, make: Make) -> Decoder:
    """A decoder that multiplies by what `make` gives for each place, and shares norms, embedding and the rest.

    A weight that a matrix stands for is left on the meta device, where it is but a name; a tied embedding stays, for
    looking up. ValueError for a decoder that is rounded already, and for devices other than CPU and CUDA.
    """
    _check(decoder)
    rounded, matrices = sharing_copy(decoder), []
    for place, linear in places(rounded).items():
        matrix = make(place, linear.weight)
        if matrix is not None:
            linear.weight = nn.Parameter(torch.empty_like(linear.weight, device="meta"), requires_grad=False)
            matrices.append((linear.weight, matrix))
    rounded.kernels = Kernels(decoder.kernels.attend, Products(matrices, decoder.kernels.multiply))
    return rounded


def bytes_read(decoder: Decoder) -> int:
    """Bytes of all matrices that a one-row forward reads, rounded or not. Norms are below a thousandth of it."""
    multiply = decoder.kernels.multiply
    rounded = multiply.matrices if isinstance(multiply, Products) else {}
    weights = [linear.weight for linear in places(decoder).values()]
    return sum(rounded[id(w)][1].nbytes if id(w) in rounded else w.nbytes for w in weights)


def bytes_kept(decoder: Decoder) -> int:
    """Bytes of all that this decoder holds in memory: what it reads, norms, tables of positions, the embedding."""
    held = {t.data_ptr(): t.nbytes for t in (*decoder.parameters(), *decoder.buffers()) if not t.is_meta}
    multiply = decoder.kernels.multiply
    matrices = multiply.matrices.values() if isinstance(multiply, Products) else ()
    return sum(held.values()) + sum(matrix.nbytes for _, matrix in matrices)


def _rounded(decoder: Decoder, format: str, head: str | None, windows: Windows, hold: Callable) -> Decoder:
    """The weights alone, held as matrices by `hold`."""
    at_head = rounding(SHORT.get(head, head)) if head else None
    given = _weights(decoder, SHORT.get(format, format), windows)

    def make(place: Place, weight: Tensor) -> Matrix | None:
        if place[1] == HEAD:
            return hold(at_head(weight)) if at_head else None
        return hold(given(place, weight))

    return replaced(given.decoder, make)


@dataclass(frozen=True)
class _Weights:
    """Rounded weights of a decoder that may have been scaled for them."""

    decoder: Decoder
    round: Callable[[Place, Tensor], Quantized]

    def __call__(self, place: Place, weight: Tensor) -> Quantized:
        return self.round(place, weight)


def _weights(decoder: Decoder, format: str, windows: Windows) -> _Weights:
    name = format.removeprefix(COMPENSATED).removeprefix(SCALED)
    to_format = rounding(name)
    if format.startswith(COMPENSATED):
        found = compensated(decoder, windows, name)
        return _Weights(decoder, lambda place, weight: found[place])
    if format.startswith(SCALED):
        decoder = awq(decoder, inputs_of(decoder, windows), to_format)
    return _Weights(decoder, lambda place, weight: to_format(weight))


def _both(decoder: Decoder, windows: Windows, remedies: Remedies) -> Decoder:
    if unknown := {*remedies.columns, *remedies.terms} - {*MATRICES, HEAD}:
        raise ValueError(f"no matrix is called {min(unknown)!r}; choose from {', '.join((*MATRICES, HEAD))}")
    inputs: dict[Place, Inputs] = {}
    if windows and (remedies.smooth or remedies.columns):
        inputs = inputs_of(decoder, windows)
        decoder = smoothed(decoder, inputs, remedies.smooth)

    def make(place: Place, weight: Tensor) -> Matrix:
        matrix = Int8Both(quantize(weight, 8), remedies.terms.get(place[1], 1))
        count = remedies.columns.get(place[1], 0) if inputs else 0
        return WideColumns(matrix, weight, largest(inputs, place, count)) if count else matrix

    return replaced(decoder, make)


def _both_in_groups(decoder: Decoder) -> Decoder:
    """Layers of 4 bits and a head of 8, as the packaged file has them (its head without minima)."""
    if decoder.norm.device.type == "cpu" and (problem := native.problem()):
        say(f"{problem}; int4-int8 is computed without them, and slowly")

    def make(place: Place, weight: Tensor) -> Matrix:
        return Grouped(quantize(weight, 8 if place[1] == HEAD else 4, GROUP, "minimum"))

    return replaced(decoder, make)


def _check(decoder: Decoder) -> None:
    if (device := decoder.norm.device.type) not in WITH_FLOAT64:
        where = " or ".join(WITH_FLOAT64)
        raise ValueError(f"rounding runs on {where}, not on {device}, where float64 is missing; use cpu")
    if isinstance(decoder.kernels.multiply, Products):
        raise ValueError("this decoder's matrices are rounded already; round the one that it was made from")
