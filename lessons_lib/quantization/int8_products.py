"""Integers times integers (lesson 10): activations are rounded as they come, one scale a row (token).

LLM.int8() (Dettmers et al. 2022, arXiv 2208.07339) adds that a few columns of the activations hold values so large
that one scale for the row would leave nothing of the others; those columns are multiplied as they are.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo import mark_static_address

from lessons_lib.quantization import units, words
from lessons_lib.quantization.checks import check_values
from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.matrix import Matrix, multiply_levels

THRESHOLD = 6.0  # of LLM.int8()
MOST = 127  # the largest level
TALL = 32  # rows of torch's integer product on a GPU, which asks for more than 16


def round_rows(x: Tensor, terms: int = 1) -> tuple[Tensor, Tensor]:
    """x (T, K) -> levels (terms·T, K) int8 in [-127, 127] and scales (terms·T, 1), in single precision or better.

    A second term rounds what the first left over, 254 times as finely: x is nearly its first T rows of levels times
    scales plus the next T. That takes another row of the product, and no other kernel.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    scales = exact.abs().amax(-1, True) / MOST
    scales = torch.where(scales == 0, 1, scales)
    levels = (exact / scales).round().clamp(-MOST, MOST)
    if terms == 1:
        return levels.to(torch.int8), scales
    fine = scales / (2 * MOST)
    rest = ((exact - levels * scales) / fine).round().clamp(-MOST, MOST)
    return torch.cat([levels, rest]).to(torch.int8), torch.cat([scales, fine])


def rounded_values(x: Tensor, terms: int) -> Tensor:
    """x (T, K) as its levels stand for it, in single precision or better."""
    levels, scales = round_rows(x, terms)
    return (levels * scales).unflatten(0, (terms, len(x))).sum(0)


def integer_product(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, K) and weight (N, K), both int8 -> x Wᵀ (T, N) int32, exact.

    Exact as long as int32 holds the sum: K up to 133,000 levels of at most 127. On a GPU the library's integer product
    takes multiples of 8 alone; other sizes, and other devices, multiply in float64.
    """
    if x.shape[1] == 1:  # of which the library's product makes nonsense on some CPUs
        return x.int() * weight.int().T
    if x.device.type == "cpu":
        return torch._int_mm(x, weight.T)
    if x.device.type == "cuda" and not (x.shape[1] % 8 or weight.shape[0] % 8):
        return tall_product(x, weight)
    return (x.double() @ weight.double().T).int()


def tall_product(x: Tensor, weight: Tensor) -> Tensor:
    """As `integer_product`, x padded to TALL rows: a GPU's tensor cores, by torch's product, take no fewer."""
    return torch._int_mm(F.pad(x, (0, 0, 0, max(0, TALL - len(x)))), weight.T)[: len(x)]


def multiply_rounded(x: Tensor, levels: Tensor, scales: Tensor, terms: int = 1) -> Tensor:
    """x (T, K), weight as levels (N, K) int8 and scales (N,) -> (T, N) in x's dtype: s_x·s_w·(q_x q_wᵀ).

    A CPU without integer units is faster with what the levels stand for, whose sums round in the seventh digit.
    """
    if x.device.type == "cpu" and not units.integer_units():
        values = rounded_values(x, terms)
        return (multiply_levels(values, levels) * scales.to(values)).to(x.dtype)
    rounded, s = round_rows(x, terms)
    return _joined(integer_product(rounded, levels) * s * scales.to(s), terms).to(x.dtype)


def _joined(product: Tensor, terms: int) -> Tensor:
    """(terms·T, N) -> (T, N)."""
    return product if terms == 1 else product.unflatten(0, (terms, -1)).sum(0)


@torch.library.register_fake("onednn::qlinear_prepack")
def _prepacked(weight: Tensor, _shape: list[int] | None) -> Tensor:
    """What a compiler expects of oneDNN's packing, which torch does not tell it: the weight transposed."""
    return weight.new_empty(weight.shape[::-1])


def multiply_on_units(x: Tensor, levels: Tensor, scales: Tensor, zeros: Tensor, terms: int = 1) -> Tensor:
    """As `multiply_rounded`, for a compiler to which levels, scales (N,) float32 and zeros (N,) int32 are constants.

    oneDNN takes unsigned activations: levels + 128, and 128 is their zero point. The compiler packs the levels ahead
    of time and tunes a loop of its own for the product. The rows' scales stay outside, as it wants one for all.
    """
    rounded, s = round_rows(x, terms)
    packed = torch.ops.onednn.qlinear_prepack(levels, None)
    unsigned, rest = (rounded.short() + 128).to(torch.uint8), (None, 1.0, 0, torch.float32, "none", [], "")
    product = torch.ops.onednn.qlinear_pointwise(unsigned, 1.0, 128, packed, scales, zeros, *rest)
    return _joined(product * s, terms).to(x.dtype)


class Int8Both(Matrix):
    """Weights (N, K) of 8 bits with a scale per row, times activations rounded to 8 bits as they come; any device.

    terms: 2 rounds activations to the sum of two levels (`round_rows`), for matrices that 8 bits of x would harm.
    """

    def __init__(self, quantized: Integers, terms: int = 1):
        """Raises ValueError for anything but 8 bits, absmax, per row, and other terms than 1 and 2."""
        if terms not in (1, 2):
            raise ValueError(f"activations are rounded to 1 or 2 terms of 8 bits, not {terms}")
        self.terms = terms
        self.levels, self.scales = signed_rows(quantized)
        self.scales = self.scales.to(torch.promote_types(self.scales.dtype, torch.float32))
        on_cpu = self.levels.device.type == "cpu"
        self.constant = on_cpu and units.integer_units()
        self.words = words.of_bytes(self.levels) if on_cpu and not self.constant else None
        if self.constant:
            self.scales = self.scales.float()  # oneDNN takes no others; of 16 bits, they are the same numbers
            self.zeros = torch.zeros_like(self.scales, dtype=torch.int32)
            for constant in (self.levels, self.scales, self.zeros):
                mark_static_address(constant)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return multiply_rounded(x, self.levels, self.scales, self.terms)

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`: on a CPU's integer units, or as sums of the levels' words where it has none."""
        if self.constant:
            return multiply_on_units(x, self.levels, self.scales, self.zeros, self.terms)
        if self.words is None:
            return self.multiply(x)
        values = rounded_values(x, self.terms)
        return (words.times_bytes(values, self.words) * self.scales.to(values)).to(x.dtype)


class WideColumns(Matrix):
    """A matrix for most of x, and the weight as it is for a few columns that are known to be loud.

    Without them one scale a row leaves more levels to the others. They take their bytes again, wide.
    """

    def __init__(self, matrix: Matrix, weight: Tensor, columns: Tensor):
        """columns: numbers (C,) of the columns of weight (N, K) that are multiplied as they are."""
        self.constant = matrix.constant
        self.matrix, self.columns, self.wide = matrix, columns, weight.detach()[:, columns].contiguous()
        self.others = torch.ones(weight.shape[1], dtype=weight.dtype, device=weight.device).index_fill(0, columns, 0)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return self.matrix.multiply(x * self.others.to(x)) + F.linear(x[:, self.columns], self.wide.to(x.dtype))

    def traced(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype, as a compiler sees it."""
        return self.matrix.traced(x * self.others.to(x)) + F.linear(x[:, self.columns], self.wide.to(x.dtype))


def outlier_columns(x: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """x (..., K) -> bool (K,): columns with any value beyond the threshold. A lesson counts them layer by layer."""
    return (x.abs() > threshold).flatten(0, -2).any(0)


class MixedProduct(Matrix):
    """LLM.int8(): outlier columns in the weight's own precision, all others as integers. threshold inf: no outliers.

    Which columns are outliers is known only when x is, so the weight is kept as well: nothing is saved here but
    arithmetic. A server that knows the columns beforehand keeps those alone.
    """

    def __init__(self, weight: Tensor, threshold: float = THRESHOLD):
        """weight (N, K). Raises ValueError for values that are not finite and a threshold below 0."""
        check_values(weight, "the weight")
        if not threshold >= 0:
            raise ValueError(f"the threshold must be at least 0, not {threshold}; the paper's is {THRESHOLD}")
        self.weight, self.threshold = weight.detach(), threshold
        self.levels, self.scales = round_rows(self.weight)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        loud = outlier_columns(x, self.threshold)
        wide = F.linear(x[:, loud], self.weight[:, loud].to(x.dtype))
        return wide + multiply_rounded(x.masked_fill(loud, 0), self.levels, self.scales[:, 0])


def signed_rows(quantized: Integers) -> tuple[Tensor, Tensor]:
    """8 bits, absmax, per row -> levels (N, K) int8 and scales (N,); anything else is a ValueError."""
    grid = quantized.grid
    symmetric = grid.zeros is None and grid.lows is None
    if len(quantized.shape) != 2 or grid.bits != 8 or not symmetric or len(grid.scales) != quantized.shape[0]:
        raise ValueError('the int8 kernels take quantize(weight, 8, "row", "absmax") of a matrix; for others use Plain')
    return (quantized.levels().short() - 128).to(torch.int8), grid.scales[:, 0].to(quantized.dtype)
