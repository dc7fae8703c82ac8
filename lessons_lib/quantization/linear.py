"""Products with rounded matrices (lesson 10), as `Kernels(multiply=Products(...))` makes a decoder use them.

Plain            any format: give the values back, then multiply. Few bytes at rest, but no faster
Int8Weights      levels of 8 bits through torch's packed CPU kernel, x as it is: half the bytes of bf16 to read
Int4Weights      levels of 4 bits in groups, likewise (both in `packed`); `weights_alone` picks one of these three
Int8Both         x rounded, too, one scale a row; integers times integers (`int8_products`)
MixedProduct     the same without the columns of outliers: LLM.int8()
Scaled           any of them behind an input that is divided by s (`scaling`)

One row times a matrix reads the weights and does little else, so fewer bytes take less time. Many rows share one
reading; there the packed kernels lose to a product with the weights as they are, which `Products(few=)` keeps.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.packed import Int4Weights, Int8Weights
from lessons_lib.quantization.quantized import Quantized


class Matrix(Protocol):
    """A matrix (N, K) that can be multiplied with."""

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> x Wᵀ (T, N) in x's dtype."""
        ...


class Plain:
    """A matrix of any format, turned back into values for every product."""

    def __init__(self, quantized: Quantized):
        self.quantized = quantized

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return F.linear(x, self.quantized.dequantize().to(x.dtype))


def weights_alone(quantized: Quantized) -> Matrix:
    """The packed kernel that reads this tensor if there is one, here and for its dtype; else Plain."""
    for kernel in (Int8Weights, Int4Weights) if isinstance(quantized, Integers) else ():
        with suppress(ValueError):
            return kernel(quantized)
    return Plain(quantized)


@dataclass(frozen=True)
class Scaled:
    """A matrix that holds W·diag(s) (`scaling`), for inputs that no norm before it has divided by s (K,) yet."""

    matrix: Matrix
    scales: Tensor

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return self.matrix.multiply(x / self.scales.to(x))


class Products:
    """How `Kernels` multiplies: x (T, K) times a weight (N, K), through that weight's matrix if it has one.

    few: rows up to which the matrices are used; wider products take the weights as they are. None: always used.
    """

    def __init__(self, matrices: Iterable[tuple[Tensor, Matrix]], few: int | None = None):
        self.matrices = {id(weight): (weight, matrix) for weight, matrix in matrices}  # kept, so ids stay theirs
        self.few = few

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        found = self.matrices.get(id(weight))
        if found is None or (self.few is not None and len(x) > self.few):
            return F.linear(x, weight)
        return found[1].multiply(x)
