"""Quantizing a decoder (lesson 10): its nn.Linear modules are replaced by quantized layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from lessons_lib.progress import say
from lessons_lib.quantization import cpu
from lessons_lib.quantization.awq import awq
from lessons_lib.quantization.calibration import HEAD, MATRICES, Inputs, Name, Windows, inputs_of, linears
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.formats import rounding
from lessons_lib.quantization.gptq import gptq_decoder
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import (
    GROUP,
    FakeQuantLinear,
    LLMInt8Linear,
    OutlierColumns,
    QuantizedLinear,
    W4A8Linear,
    W4A16Linear,
    W8A8Linear,
    W8A16Linear,
    fastest,
    sharing_copy,
    tensors,
    weight_only,
)
from lessons_lib.quantization.smoothquant import ALPHAS, smoothed

Make = Callable[[Name, Tensor], QuantizedLinear | None]  # name, weight (N, K) -> the new layer; None: keep the old one
W8A8, W8A16, W4A16, W4A8, LLM_INT8 = "W8A8", "W8A16", "W4A16", "W4A8", "llm.int8"
FORMATS = (W8A8, W8A16, W4A16, W4A8)  # formats of a target
WEIGHT_ONLY = {W8A16: "int8", W4A16: "int4 g32"}  # format -> name of its weights in `formats.rounding`
GPTQ, AWQ = "gptq ", "awq "  # prefixes of a format name
WITHOUT_KERNEL = (W8A16Linear, W4A16Linear)  # by exact type: versions with a kernel are other classes
WITH_FLOAT64 = ("cpu", "cuda")  # devices with float64, in which rounding is calibrated


@dataclass(frozen=True)
class W8A8Options:
    """Options of "W8A8" beyond rounding to 8 bits, by matrix name; {} turns an option off.

    smooth: SmoothQuant's alpha. columns: how many columns with the largest inputs stay in full precision. Both need
    windows to calibrate with, and are skipped without them. terms: number of 8-bit terms that activations are rounded
    to.
    """

    smooth: Mapping[str, float] = field(default_factory=lambda: dict(ALPHAS))
    columns: Mapping[str, int] = field(default_factory=lambda: {HEAD: 8})
    terms: Mapping[str, int] = field(default_factory=dict)


PLAIN = W8A8Options({}, {}, {})


def quantize_model(
    decoder: nn.Module,
    format: str = W8A8,
    *,
    head: str | None = W8A16,
    windows: Windows = (),
    options: W8A8Options | None = None,
    values: bool = False,
) -> nn.Module:
    """A copy of the decoder with quantized linear layers; norms, embedding and all else are shared.

    format, weights and activations: "W8A8"; "llm.int8"; "W4A8" (4-bit weights and 8-bit activations,
    both in groups of 32; 8-bit weights in the head).
    format, weight-only: "W8A16", "W4A16" (groups of 32, affine), or any name that
    `formats.rounding` knows, with the prefix "gptq " or "awq " for these methods.
    head: weight-only format of the LM head, used with weight-only layers; None leaves the head as it is.
    windows: sequences of ids to calibrate with, for GPTQ, AWQ and the options of W8A8.
    options: of W8A8; None means `W8A8Options()`.
    values: dequantize weight-only layers once, at the original size and speed, to measure quality.
    Raises ValueError for unknown names, for GPTQ and AWQ without windows, for groups that do not divide a matrix's
    rows, for a decoder that is quantized already, and for devices other than CPU and CUDA.
    """
    if (device := decoder.norm.device.type) not in WITH_FLOAT64:
        where = " or ".join(WITH_FLOAT64)
        raise ValueError(f"rounding runs on {where}, not on {device}, where float64 is missing; use cpu")
    if any(isinstance(module, QuantizedLinear) for module in decoder.modules()):
        raise ValueError("this decoder is quantized already; quantize the one that it was made from")
    try:
        if format == W8A8:
            return _w8a8(decoder, windows, W8A8Options() if options is None else options)
        if format == W4A8:
            return _w4a8(decoder)
        if format == LLM_INT8:
            return swapped(decoder, lambda name, weight: LLMInt8Linear(weight))
        return _weight_only(decoder, format, head, windows, FakeQuantLinear if values else weight_only)
    finally:  # also if the memory did not suffice: the caller may try another format
        if device == "cpu":
            cpu.trim_heap()


def swapped(decoder: nn.Module, make: Make) -> nn.Module:
    """A copy of the decoder in which make(name, weight) replaces its nn.Linear modules; all else is shared."""
    copy = sharing_copy(decoder)
    for (number, name), linear in linears(copy).items():
        made = make((number, name), linear.weight)
        if made is not None:
            setattr(copy if name == HEAD else copy.layers[number], name, made)
    return copy


def bytes_read(decoder: nn.Module) -> int:
    """Bytes of all matrices that a one-token forward pass reads. Norms add less than a thousandth."""
    return sum(of.nbytes if isinstance(of, QuantizedLinear) else of.weight.nbytes for of in linears(decoder).values())


def bytes_kept(decoder: nn.Module) -> int:
    """Bytes of everything this decoder holds in memory: matrices, norms, rotary tables, the embedding."""
    quantized = [of for of in linears(decoder).values() if isinstance(of, QuantizedLinear)]
    # by address, because LLM.int8() keeps a head's full weights, which may be the embedding, in a tensor of its own
    inside = {part.data_ptr() for of in quantized for module in of.modules() for part in tensors(module)}
    held = (part for part in (*decoder.parameters(), *decoder.buffers()) if part.data_ptr() not in inside)
    return sum({part.data_ptr(): part.nbytes for part in held}.values()) + sum(of.nbytes for of in quantized)


def _weight_only(decoder: nn.Module, format: str, head: str | None, windows: Windows, kind: Callable) -> nn.Module:
    head_to = rounding(WEIGHT_ONLY.get(head, head)) if head else None
    layers = format.removeprefix(GPTQ).removeprefix(AWQ)
    layers = WEIGHT_ONLY.get(layers, layers)
    layers_to = rounding(layers)
    # GPTQ returns rounded weights; AWQ scales the weights, which are then rounded to nearest
    compensated = gptq_decoder(decoder, windows, layers) if format.startswith(GPTQ) else {}
    if format.startswith(AWQ):
        decoder = awq(decoder, inputs_of(decoder, windows), layers_to)

    def make(name: Name, weight: Tensor) -> QuantizedLinear | None:
        if name[1] == HEAD:
            return kind(head_to(weight)) if head_to else None
        return kind(compensated[name] if name in compensated else layers_to(weight))

    return _reported(swapped(decoder, make))


def _w8a8(decoder: nn.Module, windows: Windows, options: W8A8Options) -> nn.Module:
    if unknown := {*options.columns, *options.terms} - {*MATRICES, HEAD}:
        raise ValueError(f"no matrix is called {min(unknown)!r}; choose from {', '.join((*MATRICES, HEAD))}")
    # 1. calibrate: move activation outliers into the weights
    inputs: dict[Name, Inputs] = {}
    if windows and (options.smooth or options.columns):
        inputs = inputs_of(decoder, windows)
        decoder = smoothed(decoder, inputs, options.smooth)

    # 2. round, keeping the columns with the largest inputs in full precision
    def make(name: Name, weight: Tensor) -> QuantizedLinear:
        layer = fastest(W8A8Linear, quantize(weight, 8), options.terms.get(name[1], 1))
        count = options.columns.get(name[1], 0) if inputs else 0
        if not count:
            return layer
        return OutlierColumns(layer, weight, inputs[name].largest.argsort(descending=True, stable=True)[:count])

    return swapped(decoder, make)


def _w4a8(decoder: nn.Module) -> nn.Module:
    """4-bit layers and an 8-bit head, like the packaged model file (whose head has no minima)."""

    def make(name: Name, weight: Tensor) -> QuantizedLinear:
        return fastest(W4A8Linear, quantize(weight, 8 if name[1] == HEAD else 4, GROUP, "affine"))

    device = decoder.norm.device.type
    if problem := native.problem() if device == "cpu" else f"there is no kernel for W4A8 on {device}":
        say(f"{problem}; W4A8 is slow here")
    return swapped(decoder, make)


def _reported(decoder: nn.Module) -> nn.Module:
    """Print how many matrices have no kernel for their shape and dtype here, if any -> the decoder."""
    matrices = linears(decoder).values()
    if slow := sum(type(matrix) in WITHOUT_KERNEL for matrix in matrices):
        where = f"no kernel on {decoder.norm.device.type} takes their shape and dtype"
        say(f"{slow} of {len(matrices)} matrices are dequantized at every call, which is slow: {where}")
    return decoder
