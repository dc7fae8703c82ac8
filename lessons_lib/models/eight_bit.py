"""Weights of 8 bits, one scale a row: half the bytes of bf16, to store and to read (lesson 06's draft)."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = 4  # rows up to which a product with 8-bit weights is the faster one on a CPU


class EightBit:
    """Products of a few rows with weights rounded to 8 bits, of many rows with the weights as they are.

    One row times a matrix reads the weights and does little else, so half the bytes take half the time.
    """

    def __init__(self, weights: Iterable[Tensor]):
        self.rounded = {id(weight): (weight, *round_rows(weight)) for weight in weights}  # kept, so ids stay theirs

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        if len(x) > FEW:
            return F.linear(x, weight)
        _, levels, scales = self.rounded[id(weight)]
        return torch._weight_int8pack_mm(x, levels, scales)


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) -> levels (N, D) of 8 bits and scales (N,): weight is about levels * scales[:, None]."""
    scales = (weight.detach().abs().amax(1).float() / 127).clamp_min(1e-12)
    levels = (weight.detach().float() / scales[:, None]).round().to(torch.int8)
    return levels, scales.to(weight.dtype)
