"""A decoder that computes the same with weights, or activations, that are easier to round (lesson 10).

Columns of a matrix are multiplied by s, and its inputs divided by it where they are made: in the norm before "qkv" and
"gate_up", in the rows of "gate_up" that make the second factor of what "down" reads. "out" is left alone, since one
value head serves several of its columns. Nothing is added to a forward. Papers: `quantization.scaling`.
"""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from lessons_lib.models.calibrate import Inputs, Place
from lessons_lib.models.copies import sharing_copy
from lessons_lib.models.decoder import Decoder, Layer
from lessons_lib.quantization.formats import Rounding
from lessons_lib.quantization.scaling import awq_scales, smooth_scales

SMOOTHED = ("down", "qkv", "gate_up")  # "down" first: its scales change the rows of "gate_up"
ALPHAS = {"qkv": 0.7, "gate_up": 0.7, "down": 0.5}  # share of the outliers that weights take over


def smoothed(decoder: Decoder, inputs: Mapping[Place, Inputs], alphas: Mapping[str, float] = ALPHAS) -> Decoder:
    """SmoothQuant: outliers of activations moved into weights, alpha of them.

    ValueError for matrices not SMOOTHED, and as `smooth_scales`: alpha out of [0, 1], values that are not finite.
    """

    def scales(place: Place, weight: Tensor) -> Tensor:
        largest = inputs[place].largest
        return smooth_scales(largest, weight.abs().amax(0).to(largest), alphas[place[1]])

    return _each(decoder, alphas, scales)


def awq(decoder: Decoder, inputs: Mapping[Place, Inputs], rounding: Rounding) -> Decoder:
    """AWQ: columns of large inputs made larger by as much as serves this rounding best on a sample of the inputs.

    ValueError as `awq_scales`, and as the rounding has it.
    """
    return _each(decoder, SMOOTHED, lambda place, weight: awq_scales(inputs[place].sample, weight, rounding))


def _each(decoder: Decoder, names: Collection[str], scales_of: Callable[[Place, Tensor], Tensor]) -> Decoder:
    if unknown := set(names) - set(SMOOTHED):
        raise ValueError(f"{', '.join(sorted(unknown))} cannot be scaled; choose from {', '.join(SMOOTHED)}")
    made = sharing_copy(decoder)
    for number, layer in enumerate(made.layers):
        for name in (name for name in SMOOTHED if name in names):
            scale(layer, name, scales_of((number, name), getattr(layer, name).weight))
    return made


def scale(layer: Layer, name: str, scales: Tensor) -> None:
    """Multiply the columns of one matrix (N, K) by scales (K,) and divide what it reads by them, all in new tensors."""
    linear = getattr(layer, name)
    linear.weight = _weight(linear.weight.double() * scales.double(), linear.weight)
    if name == "down":
        gate, up = layer.gate_up.weight.double().chunk(2)
        layer.gate_up.weight = _weight(torch.cat([gate, up / scales.double()[:, None]]), linear.weight)
    else:
        norm = "attention_norm" if name == "qkv" else "mlp_norm"
        old = getattr(layer, norm)
        setattr(layer, norm, _weight(old.double() / scales.double(), old))


def _weight(values: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(values.to(like.dtype), requires_grad=False)
