"""A decoder with its matrices in few bits (lesson 10): products of its own, and nothing wide left where they serve.

A place is the number of a layer and the name of a matrix in it ("qkv", "out", "gate_up", "down"), or (L, "head").
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lessons_lib.models.decoder import Decoder
from lessons_lib.models.kernels import Kernels
from lessons_lib.quantization.int8_products import Int8Both
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import Products, weights_alone
from lessons_lib.quantization.matrix import Matrix

MATRICES, HEAD = ("qkv", "out", "gate_up", "down"), "head"
Place = tuple[int, str]
Make = Callable[[Place, Tensor], Matrix | None]  # place and weight (N, K) -> what multiplies instead; None: the weight
FORMATS = ("int8", "int8-weight-only", "int4")


def quantized(decoder: Decoder, format: str = "int8") -> Decoder:
    """A decoder that computes with rounded matrices and shares all else with this one.

    format: "int8", weights and activations of 8 bits; "int8-weight-only"; "int4", weights of 4 bits in groups of 32
    with a minimum, the head in 8 bits. ValueError for others, and for a decoder that is rounded already.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    return replaced(decoder, MAKERS[format])


def replaced(decoder: Decoder, make: Make) -> Decoder:
    """A decoder that multiplies by what `make` gives for each place, and shares norms, embedding and the rest.

    A weight that a matrix stands for is left on the meta device, where it is but a name; a tied embedding stays, for
    looking up. ValueError for a decoder that is rounded already.
    """
    if isinstance(decoder.kernels.multiply, Products):
        raise ValueError("this decoder's matrices are rounded already; round the one that it was made from")
    shared = {id(t): t for t in (*decoder.parameters(), *decoder.buffers())}
    rounded, matrices = copy.deepcopy(decoder, shared), []
    for place, linear in places(rounded).items():
        matrix = make(place, linear.weight)
        if matrix is not None:
            linear.weight = nn.Parameter(torch.empty_like(linear.weight, device="meta"), requires_grad=False)
            matrices.append((linear.weight, matrix))
    rounded.kernels = Kernels(decoder.kernels.attend, Products(matrices, other=decoder.kernels.multiply))
    return rounded


def places(decoder: Decoder) -> dict[Place, nn.Linear]:
    """Every matrix that a forward multiplies by, in the order in which it does."""
    layers = {(i, name): getattr(layer, name) for i, layer in enumerate(decoder.layers) for name in MATRICES}
    return layers | {(len(decoder.layers), HEAD): decoder.head}


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


def _both(place: Place, weight: Tensor) -> Matrix:
    return Int8Both(quantize(weight, 8))


def _eight(place: Place, weight: Tensor) -> Matrix:
    return weights_alone(quantize(weight, 8))


def _four(place: Place, weight: Tensor) -> Matrix:
    return _eight(place, weight) if place[1] == HEAD else weights_alone(quantize(weight, 4, 32, "minimum"))


MAKERS: dict[str, Make] = {"int8": _both, "int8-weight-only": _eight, "int4": _four}
