"""Matrix products from rounded weights (lessons 10, 11): which kernel multiplies, on a CPU and on a GPU."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib import native
from lessons_lib.quantization.cpu import (
    DTYPES,
    GROUP,
    INT4_GROUPS,
    LANES,
    Int8Weights,
    Matrix,
    check_int4,
    int4_weights,
    rounded_values,
    scales_and_zeros,
    side_by_side,
)
from lessons_lib.quantization.formats import Integers, Quantized

TILE = 16  # codes of a row in one tile; the kernel takes 8, 4 or 2 tiles at a time


class Int4Tiles(Matrix):
    """Weights (N, K) of 4 bits in groups with a minimum, w = (q - 8)·scale + zero, on a GPU of CUDA; x in bfloat16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for what the kernel cannot read: a CPU's codes, other dtypes, bits, groups and sizes."""
        if quantized.codes.is_cpu:
            raise ValueError("the GPU's int4 kernel reads no tensor on a CPU; use Int4Weights")
        check_bf16(quantized.dtype)
        self.group = check_int4(quantized, INT4_GROUPS)
        self.packed, self.scales_and_zeros = tiles(quantized.levels()), scales_and_zeros(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) bfloat16 -> (T, N). ValueError for another dtype."""
        check_bf16(x.dtype)
        return torch._weight_int4pack_mm(x.contiguous(), self.packed, self.group, self.scales_and_zeros)


def check_bf16(dtype: torch.dtype) -> None:
    """Raises ValueError for a dtype that the kernel does not have."""
    if dtype != torch.bfloat16:
        raise ValueError(f"the GPU's int4 kernel takes bfloat16, not {dtype}; use Plain")


def tiles(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> as the kernel reads them, int32 (N / 8, K / 16t, 32, t / 2), t tiles at a time.

    StopIteration for K that is no multiple of 32.
    """
    columns = levels.shape[1]
    at_a_time = next(count for count in (8, 4, 2) if columns % (count * TILE) == 0)
    return torch._convert_weight_to_int4pack(in_pairs(levels), at_a_time)


def in_pairs(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> bytes (N, K / 2), uint8: of two neighbours the first is the high half."""
    levels = levels.to(torch.uint8)
    return levels[:, ::2] << 4 | levels[:, 1::2]


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


QUAD = 4  # columns that one instruction adds up


class Grouped(Matrix):
    """Weights (N, K) in groups of 32 times inputs rounded likewise, on any device.

    problem: why the kernel does not multiply, None if it does. x is in float32, bfloat16 or float16; in a dtype for
    which the weights were not quantized only where nothing packed multiplies.
    """

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but 4 or 8 bits, "minimum", groups of 32."""
        _check(quantized)
        self.bits, self.problem = quantized.grid.bits, _problem(quantized)
        self.native = not self.problem
        self.inner = weights_alone(quantized) if self.problem else None
        if self.native:
            self.codes, self.grid = interleaved(quantized.levels(), self.bits), scales_and_lows(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for another K, and for dtypes that the kernel does not take."""
        if self.native:
            return native.multiply_grouped(x, self.codes, self.grid, self.bits)
        return self.inner.multiply(round_groups(x))

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`, with what a compiler reads best where there is no kernel."""
        return self.multiply(x) if self.native else self.inner.traced(round_groups(x))


def round_groups(x: Tensor) -> Tensor:
    """x (T, K) rounded to 8 bits, one scale for 32 values -> the values that these stand for, in x's dtype."""
    return rounded_values(x.reshape(-1, GROUP), 1).view(x.shape).to(x.dtype)


def interleaved(levels: Tensor, bits: int) -> Tensor:
    """levels (N, K) uint8 -> (N/16, K/32, bytes) as the kernel reads them: quads of columns, 16 rows of each.

    A byte of 4-bit codes holds one of an even quad below one of the quad behind it.
    """
    quads = levels.view(len(levels) // LANES, LANES, -1, GROUP // QUAD, QUAD).permute(0, 2, 3, 1, 4)
    if bits == 4:
        quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
    return quads.flatten(2).contiguous()


def scales_and_lows(quantized: Integers) -> Tensor:
    """(N/16, K/32, 2, 16) float16: of each group its scale, and what code 0 stands for."""
    grid, rows = quantized.grid, quantized.shape[0]
    return torch.stack([side_by_side(grid.scales, rows), side_by_side(grid.lows, rows)], 2).contiguous()


def _check(quantized: Integers) -> None:
    grid = quantized.grid
    grouped = len(quantized.shape) == 2 and quantized.shape.numel() == GROUP * len(grid.scales)
    if grid.bits not in (4, 8) or grid.lows is None or not grouped:
        raise ValueError('grouped products take quantize(weight, 4 or 8, 32, "minimum") of a matrix; else use Plain')


def _problem(quantized: Integers) -> str | None:
    """Why the kernel cannot take this matrix, None if it can."""
    if quantized.codes.device.type != "cpu" or quantized.dtype not in DTYPES:
        return f"the kernel is one of the CPU, for {', '.join(map(str, DTYPES))}"
    if quantized.shape[0] % LANES or quantized.grid.scales.dtype != torch.float16:
        return f"the kernel takes rows in multiples of {LANES} and scales in float16"
    return native.problem()
