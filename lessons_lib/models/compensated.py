"""A decoder's weights rounded by GPTQ (lesson 10): layer after layer, each from what the rounded ones before it give.

Frantar et al. 2022 (arXiv 2210.17323). The matrices of one layer look at the inputs that the layer as it was gives
them, behind layers that are rounded.
"""

import torch
from torch import Tensor

from lessons_lib.models.calibrate import Place, Windows, start, watching
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.kernels import Kernels
from lessons_lib.quantization.formats import Integers, integers
from lessons_lib.quantization.gptq import gptq, hessian
from lessons_lib.quantization.linear import Products, Values


@torch.no_grad()
def compensated(decoder: Decoder, windows: Windows, format: str) -> dict[Place, Integers]:
    """Every layer's weights in integers, with act-order. ValueError for other formats, no windows, and as `gptq`."""
    options = integers(format)
    if options is None or not windows:
        raise ValueError(f"GPTQ rounds to integers, such as 'int3 g64', with windows of ids to calibrate on; got "
                         f"{format!r} and {len(windows)} windows")  # fmt: skip
    texts = [start(decoder, ids) for ids in windows]
    states = [decoder.embedding(tokens) for tokens, _ in texts]
    segments, rounded = [segment for _, segment in texts], {}
    for number in range(len(decoder.layers)):
        found = _round_layer(decoder, number, states, segments, options)
        states = _through(decoder, number, states, segments, _kernels(decoder, number, found))
        rounded |= found
    return rounded


def _round_layer(
    decoder: Decoder, number: int, states: list[Tensor], segments: list[Segment], options: dict
) -> dict[Place, Integers]:
    """One layer's matrices, rounded for what they read on these states."""
    sums: dict[Place, Tensor] = {}

    def see(place: Place, x: Tensor) -> None:
        sums[place] = sums.get(place, 0) + len(x) * hessian(x)

    _through(decoder, number, states, segments, watching(decoder, see))
    layer, count = decoder.layers[number], sum(map(len, states))
    of = {place: (getattr(layer, place[1]).weight, total / count) for place, total in sums.items()}
    return {place: gptq(*given, act_order=True, **options) for place, given in of.items()}


def _kernels(decoder: Decoder, number: int, rounded: dict[Place, Integers]) -> Kernels:
    layer = decoder.layers[number]
    pairs = [(getattr(layer, name).weight, Values(integers)) for (_, name), integers in rounded.items()]
    return Kernels(decoder.kernels.attend, Products(pairs, decoder.kernels.multiply))


def _through(
    decoder: Decoder, number: int, states: list[Tensor], segments: list[Segment], kernels: Kernels
) -> list[Tensor]:
    """States behind one layer."""
    run = dict(layers=range(number, number + 1), kernels=kernels)  # tokens are not looked up where states are given
    pairs = zip(states, segments, strict=True)
    return [decoder(segment.positions, [segment], states=x, **run).last for x, segment in pairs]
