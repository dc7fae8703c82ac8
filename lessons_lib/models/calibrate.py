"""What a decoder's matrices read along calibration text (lesson 10): whatever looks at inputs before it rounds.

A place is the number of a layer and the name of a matrix in it ("qkv", "out", "gate_up", "down"), or (L, "head").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.kernels import Kernels

MATRICES, HEAD = ("qkv", "out", "gate_up", "down"), "head"
SAMPLE = 256  # rows of a matrix's inputs that are kept
Place = tuple[int, str]
Windows = Sequence[Sequence[int]]  # ids that are read together, each from its own beginning


@dataclass(frozen=True)
class Inputs:
    """What a matrix (N, K) read: max |x| and mean |x| of each column (K,), and some of the rows (n, K)."""

    largest: Tensor
    mean: Tensor
    sample: Tensor


def in_layers(decoder: Decoder) -> dict[Place, nn.Linear]:
    """The matrices of the layers, in the order in which a forward multiplies by them."""
    return {(i, name): getattr(layer, name) for i, layer in enumerate(decoder.layers) for name in MATRICES}


def places(decoder: Decoder) -> dict[Place, nn.Linear]:
    """Every matrix that a forward multiplies by, the head behind those of the layers."""
    return in_layers(decoder) | {(len(decoder.layers), HEAD): decoder.head}


def by_weight(matrices: Mapping[Place, nn.Linear]) -> dict[int, Place]:
    """id of a weight, which is all that a product is handed -> its place."""
    return {id(linear.weight): place for place, linear in matrices.items()}


def watching(decoder: Decoder, see: Callable[[Place, Tensor], None]) -> Kernels:
    """The decoder's kernels, which show what each matrix is given: see(place, x (T, K))."""
    names, inner = by_weight(places(decoder)), decoder.kernels

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        see(names[id(weight)], x)
        return inner.multiply(x, weight)

    return Kernels(inner.attend, multiply)


@torch.no_grad()
def watch(decoder: Decoder, windows: Windows, see: Callable[[Place, Tensor], None]) -> None:
    """Run the windows through the decoder and show what each matrix is given, x (T, K). ValueError without windows."""
    if not windows:
        raise ValueError("there is nothing to calibrate with; pass windows of ids, such as of text('calibration')")
    kernels = watching(decoder, see)
    for ids in windows:
        tokens, segment = start(decoder, ids)
        decoder.logits(decoder(tokens, [segment], kernels=kernels).last, kernels)


class Uncached:
    """In place of a cache, for a text that one forward reads from its first token to its last."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys and values (H_kv, T, d) -> the same: all there is are the new ones."""
        return keys, values


def start(decoder: Decoder, ids: Sequence[int]) -> tuple[Tensor, Segment]:
    """A text as one forward reads it: its tokens (T,), and their places."""
    device = decoder.norm.device
    return torch.tensor(list(ids), device=device), Segment(torch.arange(len(ids), device=device), Uncached())


def inputs_of(decoder: Decoder, windows: Windows) -> dict[Place, Inputs]:
    """What each matrix reads along these windows, their first tokens left out.

    A first token's states are many times larger than any other's (Sun et al. 2024, arXiv 2402.17762), and rounded by
    scales of its own wherever activations are: it must not decide about the others.
    ValueError without windows.
    """
    seen: dict[Place, list[Tensor]] = {}
    watch(decoder, windows, lambda place, x: seen.setdefault(place, []).append(_summary(x)))
    each = max(1, SAMPLE // len(windows))
    return {place: _together(parts, each) for place, parts in seen.items()}


def _summary(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x[1:].float() if x.dtype != torch.float64 else x[1:]
    return x.abs().amax(0), x.abs().mean(0), x[:: max(1, len(x) // SAMPLE)]


def _together(parts: Sequence[tuple[Tensor, Tensor, Tensor]], each: int) -> Inputs:
    largest, mean, samples = zip(*parts, strict=True)
    rows = [x[torch.linspace(0, len(x) - 1, min(each, len(x))).long()] for x in samples]
    return Inputs(torch.stack(largest).amax(0), torch.stack(mean).mean(0), torch.cat(rows))


def largest(inputs: Mapping[Place, Inputs], place: Place, count: int) -> Tensor:
    """(count,) numbers of the columns in which a matrix reads the largest values, the largest first."""
    return inputs[place].largest.argsort(descending=True, stable=True)[:count]
