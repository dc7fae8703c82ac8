"""What tests of quantization share: random values, a tiny decoder with other weights, and columns that are loud."""

import pytest
import torch
from torch import Tensor, nn

from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import FakeQuantLinear
from lessons_lib.quantization.model import swapped

IDS = [5, 80, 3, 3, 61, 17, 42, 9, 90, 2, 33, 64]

WINDOWS = [[(7 * i * i + 3 * start) % 97 for i in range(40)] for start in range(4)]


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def random(*shape: int, seed: int = 0, dtype=torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def decoder(dtype=torch.float64, tied=True, **sizes) -> Decoder:
    return Decoder.from_transformers(tiny(dtype=dtype, tied=tied, **sizes))


@torch.no_grad()
def logits(of: Decoder, ids=IDS) -> Tensor:
    return of.read(ids)


@torch.no_grad()
def with_weights(of: Decoder, change) -> Decoder:
    """The same decoder with other weights, all as wide as before."""
    return swapped(of, lambda place, weight: FakeQuantLinear(Given(change(place, weight))))


class Given:
    """Values as they are, where a quantized tensor is asked for."""

    def __init__(self, values: Tensor):
        self.values, self.nbytes = values, values.nbytes

    def dequantize(self) -> Tensor:
        return self.values


def off(of: Decoder, right: Tensor) -> float:
    return float((logits(of).double() - right).norm() / right.norm())


def loud(whole: Decoder, taken_back=True) -> Decoder:
    """A decoder whose norms make columns 3 and 11 sixty times as loud; with that taken back, the same function."""
    pairs = [(layer.attention_norm, layer.qkv) for layer in whole.layers]
    pairs += [(layer.mlp_norm, layer.gate_up) for layer in whole.layers] + [(whole.norm, whole.head)]
    whole.head.weight = torch.nn.Parameter(whole.head.weight.clone(), requires_grad=False)
    for norm, matrix in pairs:
        norm.data[[3, 11]] *= 60
        if taken_back:
            matrix.weight.data[:, [3, 11]] /= 60
    return whole


def loud_channels(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (64, 32) with two loud channels and a weight (16, 32), float64."""
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(rows, 32, generator=generator, dtype=torch.float64) for rows in (64, 16))
    x[:, [4, 19]] *= 40
    return x, w


def in_3_bits(w: Tensor):
    return quantize(w, 3, 16)


def compiled(layer: nn.Module):
    """The layer in the form that it gives to a compiler, whole: fullgraph raises where a graph would break."""
    torch._dynamo.reset()
    return torch.compile(layer, fullgraph=True, dynamic=False, backend="eager")
