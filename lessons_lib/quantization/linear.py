"""Products with rounded matrices (lesson 10), as `Kernels(multiply=Products(...))` makes a decoder use them.

Plain            any format: give the values back, then multiply. Few bytes at rest, but no faster
Values           any format, given back once: as wide and as fast as before, to measure what rounding costs
Int8Weights      levels of 8 bits, x as it is: half the bytes of bf16 to read
Int4Weights      levels of 4 bits in groups, likewise, or Int4Words (all in `packed`); Int4Tiles on a GPU (`on_gpu`)
Int8Both         x rounded, too, one scale a row; integers times integers (`int8_products`)
Grouped          weights of 4 or 8 bits, x rounded to 8, one scale for 32 values of either (`grouped`)
MixedProduct     Int8Both without the columns of outliers: LLM.int8()
WideColumns      any of them beside a few columns that are known to be loud, and stay wide
Scaled           any of them behind an input that is divided by s (`scaling`)

One row times a matrix reads the weights and does little else, so fewer bytes take less time. Many rows share one
reading, and there codes that have to be made wide first cost time.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

import torch.nn.functional as F
from torch import Tensor

from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.matrix import Matrix
from lessons_lib.quantization.on_gpu import Int4Tiles
from lessons_lib.quantization.packed import Int8Weights, int4_weights
from lessons_lib.quantization.quantized import Quantized


class Plain(Matrix):
    """A matrix of any format, turned back into values for every product."""

    def __init__(self, quantized: Quantized):
        self.quantized = quantized

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return F.linear(x, self.quantized.dequantize().to(x.dtype))


class Values(Matrix):
    """A matrix of any format, turned back into values once and for all; `nbytes` are those of the format."""

    def __init__(self, quantized: Quantized):
        self.values, self._nbytes = quantized.dequantize(), quantized.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that the quantized tensor took."""
        return self._nbytes

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return F.linear(x, self.values.to(x.dtype))


class Scaled(Matrix):
    """A matrix that holds W·diag(s) (`scaling`), for inputs that no norm before it has divided by s (K,) yet."""

    def __init__(self, matrix: Matrix, scales: Tensor):
        self.matrix, self.scales, self.constant = matrix, scales, matrix.constant

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return self.matrix.multiply(x / self.scales.to(x))

    def traced(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype, as a compiler sees it."""
        return self.matrix.traced(x / self.scales.to(x))


KERNELS = {"cpu": (Int8Weights, int4_weights), "cuda": (Int8Weights, Int4Tiles)}


def weights_alone(quantized: Quantized) -> Matrix:
    """The product that reads this tensor (N, K) as it is kept if there is one, here and for its dtype; else Plain."""
    for kernel in KERNELS.get(quantized.codes.device.type, ()) if isinstance(quantized, Integers) else ():
        with suppress(ValueError):
            return kernel(quantized)
    return Plain(quantized)


class Products:
    """How `Kernels` multiplies: x (T, K) times a weight (N, K) -> (T, N), through that weight's matrix if it has one.

    A weight with a matrix is but its key, and needs no values. other: how those without are multiplied. traced:
    whether a compiler looks at them. ValueError for a dtype of x that the matrix does not take.
    """

    def __init__(
        self, matrices: Iterable[tuple[Tensor, Matrix]], other: Callable = F.linear, traced: bool = False
    ):  # fmt: skip
        self.matrices = {id(weight): (weight, matrix) for weight, matrix in matrices}  # kept, so ids stay theirs
        self.other, self.traced = other, traced

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        found = self.matrices.get(id(weight))
        if found is None:
            return self.other(x, weight)
        return found[1].traced(x) if self.traced else found[1].multiply(x)

    @property
    def constant(self) -> bool:
        """Whether a compiler has to see a matrix as constant."""
        return any(matrix.constant for _, matrix in self.matrices.values())

    @property
    def native(self) -> bool:
        """Whether a kernel of ours in C++ multiplies."""
        return any(matrix.native for _, matrix in self.matrices.values())

    def compiled(self, other: Callable) -> "Products":
        """The same for a compiler, which sees `other` for the weights that have no matrix."""
        return Products(self.matrices.values(), other, traced=True)
