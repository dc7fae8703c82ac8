"""Rounded weights as a CPU multiplies them fastest (lessons 10, 11): layouts, and what each instruction set needs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo import mark_static_address

from lessons_lib.compiler import CHUNK, PLACES, kept_in_memory
from lessons_lib.quantization.formats import Integers, check_cpu, check_values


def packed_kernels() -> bool:
    """Whether torch's packed kernels of 8 and 4 bits are vectorised here (AVX512). With AVX2 they go code by code."""
    return torch.cpu._is_avx512_supported()


def integer_units() -> bool:
    """Whether one instruction multiplies and adds four pairs of 8-bit integers (VNNI), without overflow in between."""
    return torch.cpu._is_vnni_supported()


BYTES, NIBBLES = 4, 8  # codes of 8 and of 4 bits in a word
LANES = 16  # rows of a 4-bit matrix that stand side by side, one a lane: no sum runs across lanes
GROUP = 32  # weights of a 4-bit scale: four words
SUMS = 16  # rows of x up to which sums over words of bytes, taken apart once for all rows, beat the library


def of_bytes(levels: Tensor) -> Tensor | None:
    """levels (N, K) int8 -> the same memory as words (N, K/4) float32; None where four do not fill a word."""
    return levels.view(torch.float32) if levels.shape[1] % BYTES == 0 else None


def times_bytes(x: Tensor, words: Tensor) -> Tensor:
    """x (T, K) times signed bytes, as words (N, K/4) -> (T, N): few rows as sums in one loop, many by the library."""
    if len(x) == 1:
        return torch.cat([byte_row(x, part) for part in words.chunk(PLACES)], 1)
    if len(x) <= SUMS:
        return torch.cat([byte_row(row, words) for row in x.split(1)])
    rows = max(1, CHUNK // x.shape[1])
    return torch.cat([byte_rows(x, part) for part in words.split(rows)], 1)


def byte_planes(words: Tensor) -> list[Tensor]:
    """words (N, K/4) float32 -> four (N, K/4) int32: the signed bytes of columns 0, 4, 8, ...; 1, 5, ... and so on."""
    w = words.view(torch.int32)
    return [(w << (24 - 8 * place)) >> 24 for place in range(BYTES)]


def byte_row(x: Tensor, words: Tensor) -> Tensor:
    """x (1, K) times signed bytes, as words (N, K/4) -> (1, N) in x's dtype, summed in float32 or better."""
    exact = torch.promote_types(x.dtype, torch.float32)
    parts = kept_in_memory(x.to(exact).view(-1, BYTES).T)
    return sum(plane * part for plane, part in zip(byte_planes(words), parts, strict=True)).sum(-1)[None]


def byte_rows(x: Tensor, words: Tensor) -> Tensor:
    """As `byte_row` for x (T, K): bytes are written out in x's dtype, and multiplied by the library."""
    wide = torch.cat([plane.to(x.dtype) for plane in byte_planes(words)], 1)
    return x.view(len(x), -1, BYTES).transpose(1, 2).reshape(x.shape) @ wide.T


def pack_nibbles(levels: Tensor) -> Tensor:
    """levels (N, K) 0 .. 15 -> words (N/16, K/8, 16) float32: eight columns a word, sixteen rows side by side."""
    rows, columns = levels.shape
    parts = levels.view(rows, columns // NIBBLES, NIBBLES).int()
    words = sum(parts[..., place] << (4 * place) for place in range(NIBBLES)).int()
    return words.view(rows // LANES, LANES, -1).transpose(1, 2).contiguous().view(torch.float32)


def nibble_planes(words: Tensor) -> list[Tensor]:
    """words (..., 16) -> eight int32 of their shape: columns 0, 8, 16, ...; 1, 9, ... and so on, each 0 .. 15."""
    w = words.view(torch.int32)
    return [(w >> (4 * place)) & 15 for place in range(NIBBLES)]


def times_nibbles(x: Tensor, words: Tensor, scales: Tensor, lows: Tensor) -> Tensor:
    """x (T, K) times codes of 4 bits in groups -> (T, N): one row as sums, several by the library. As `nibble_row`."""
    if len(x) == 1:
        return nibble_row(x, words, scales, lows)
    blocks = max(1, CHUNK // (LANES * x.shape[1]))
    parts = zip(*(part.split(blocks) for part in (words, scales, lows)), strict=True)
    return torch.cat([nibble_rows(x, *part) for part in parts], 1)


def nibble_row(x: Tensor, words: Tensor, scales: Tensor, lows: Tensor) -> Tensor:
    """x (1, K) times codes of 4 bits -> (1, N) in float32 or better: y_n = sum over groups of s·sum(q·x) + low·sum(x).

    words (N/16, K/8, 16) as `pack_nibbles` has them, scales and lows (N/16, K/32, 16).
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    grouped = x.to(exact).view(-1, GROUP // NIBBLES, NIBBLES)  # (K/32, 4 words, 8 codes)
    parts, totals = kept_in_memory(grouped), kept_in_memory(grouped.sum((1, 2)))
    by_group = words.view(len(words), -1, GROUP // NIBBLES, LANES)
    total = 0.0
    for word in range(GROUP // NIBBLES):
        for place, plane in enumerate(nibble_planes(by_group[:, :, word])):
            total = total + plane * parts[:, word, place, None]
    return (total * scales.to(exact) + lows.to(exact) * totals[:, None]).sum(1).view(1, -1)


def nibble_values(words: Tensor, scales: Tensor, lows: Tensor, dtype: torch.dtype) -> Tensor:
    """-> the weights (8, K/8, N) in dtype, plane by plane: entry (p, w, n) is column 8·w + p of row n."""
    exact = torch.promote_types(dtype, torch.float32)
    scales, lows = (part.to(exact).repeat_interleave(GROUP // NIBBLES, 1) for part in (scales, lows))
    planes = [(plane * scales + lows).to(dtype).transpose(0, 1).flatten(1) for plane in nibble_planes(words)]
    return torch.stack(planes)


def nibble_rows(x: Tensor, words: Tensor, scales: Tensor, lows: Tensor) -> Tensor:
    """As `nibble_row` for x (T, K), in x's dtype: weights are written out and multiplied by the library."""
    wide = nibble_values(words, scales, lows, x.dtype).flatten(0, 1)
    return x.view(len(x), -1, NIBBLES).transpose(1, 2).reshape(x.shape) @ wide


class Matrix(ABC):
    """A matrix (N, K) that can be multiplied with.

    constant: whether a compiler has to see its codes as constants, and to tune the products. native: whether a kernel
    of ours in C++ multiplies.
    """

    constant = native = False

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> x Wᵀ (T, N) in x's dtype. ValueError for dtypes that a kernel does not take."""

    def traced(self, x: Tensor) -> Tensor:
        """The same in operations that a compiler makes the most of."""
        return self.multiply(x)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept, which one product reads; what two of them share counts once."""
        return storage_bytes(tensors(self))


def storage_bytes(parts: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors; what two of them share counts once."""
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}.values())


def tensors(part: Any) -> list[Tensor]:
    """All tensors of a matrix, of the matrices within it and of the dataclasses that it keeps."""
    if isinstance(part, Tensor):
        return [part]
    return [x for inner in vars(part).values() for x in tensors(inner)] if hasattr(part, "__dict__") else []


def multiply_levels(x: Tensor, levels: Tensor) -> Tensor:
    """x (T, K) times levels (N, K) int8 -> (T, N) in x's dtype; few of the levels are wide at a time."""
    rows = max(1, CHUNK // levels.shape[1])
    return torch.cat([x @ part.to(x.dtype).T for part in levels.split(rows)], 1)


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
    if x.device.type == "cpu" and not integer_units():
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
        self.constant = on_cpu and integer_units()
        self.words = of_bytes(self.levels) if on_cpu and not self.constant else None
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
        return (times_bytes(values, self.words) * self.scales.to(values)).to(x.dtype)


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


DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of x
INT4_GROUPS = (32, 64, 128, 256)
GROUP_SIZES = {group: torch.tensor(group) for group in INT4_GROUPS}  # as an operator wants them
FEW = 4  # rows up to which the packed kernel of 8 bits is the faster one


class Int8Weights(Matrix):
    """Weights (N, K) of 8 bits with a scale per row; x in float32, bfloat16 or float16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but 8 bits, absmax, per row, and for other dtypes."""
        check_packed(quantized.dtype)
        self.levels, self.scales = signed_rows(quantized)
        self.on_cpu = self.levels.device.type == "cpu"
        self.words = of_bytes(self.levels) if self.on_cpu else None

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for dtypes other than those three."""
        check_packed(x.dtype)
        if self.on_cpu and packed_kernels() and len(x) <= FEW:
            return torch._weight_int8pack_mm(x.contiguous(), self.levels, self.scales.to(x.dtype))
        return multiply_levels(x, self.levels) * self.scales.to(x.dtype)

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`; levels are read as words where four of them fill one, and then x may be of any dtype.

        On a GPU one row is a sum over products: a compiler reads and widens the levels in one loop.
        """
        if self.words is not None:
            return (times_bytes(x, self.words) * self.scales.to(x.dtype)).to(x.dtype)
        if self.on_cpu or len(x) > 1:
            return self.multiply(x)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return ((exact * self.levels).sum(-1) * self.scales.to(exact)).to(x.dtype)[None]


class Int4Weights(Matrix):
    """Weights (N, K) of 4 bits in groups for torch's kernel, on a CPU; x in float32, bfloat16 or float16.

    The kernel keeps scale and zero in x's dtype: in bf16 they are rounded once more than in the quantized tensor. Many
    rows go through it, too, though they would be faster with wide weights: codes stand in an order of its own.
    """

    def __init__(self, quantized: Integers):
        """Raises ValueError for what the kernel cannot read: other bits, kinds, groups, sizes, dtypes and devices."""
        check_cpu(quantized.codes)
        self.group = check_int4(quantized, INT4_GROUPS)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(quantized.levels().int(), 1)
        self.scales_and_zeros = scales_and_zeros(quantized)

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for dtypes other than those three."""
        check_packed(x.dtype)
        both = self.scales_and_zeros.to(x.dtype)
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, self.group, both)

    def traced(self, x: Tensor) -> Tensor:
        """As `multiply`, by the operator that torch's compiler would put in its place: in a layer that is compiled once
        for all, it mislays the group's size.
        """
        check_packed(x.dtype)
        both = self.scales_and_zeros.to(x.dtype)
        return torch.ops.quantized.int4mm_packed_weight_cpu(x.contiguous(), self.packed, GROUP_SIZES[self.group], both)


class Int4Words(Matrix):
    """Weights (N, K) of 4 bits in groups of 32 as words (`words`), on a CPU; x in float32, bfloat16 or float16."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for other bits, kinds, groups, sizes, dtypes and devices."""
        check_cpu(quantized.codes)
        check_int4(quantized, (GROUP,))
        rows = quantized.shape[0]
        self.words = pack_nibbles(quantized.levels())
        self.scales, self.lows = (side_by_side(part, rows) for part in (quantized.grid.scales, quantized.grid.lows))

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype. ValueError for dtypes other than those three."""
        check_packed(x.dtype)
        return times_nibbles(x, self.words, self.scales, self.lows).to(x.dtype)


def int4_weights(quantized: Integers) -> Matrix:
    """Int4Weights or Int4Words of a matrix (N, K), whichever is fast here. ValueError for what it cannot read."""
    return Int4Weights(quantized) if packed_kernels() else Int4Words(quantized)


def side_by_side(part: Tensor, rows: int) -> Tensor:
    """A number for each group (N·groups, 1) of a matrix of N rows -> (N/16, groups, 16): 16 rows, one a lane."""
    return part.view(rows // LANES, LANES, -1).transpose(1, 2).contiguous()


def check_int4(quantized: Integers, groups: tuple[int, ...]) -> int:
    """The size of its groups. ValueError unless this is a matrix of 4 bits in such groups."""
    check_packed(quantized.dtype)
    grid, rows = quantized.grid, quantized.shape[0]
    group = quantized.shape.numel() // len(grid.scales)
    readable = grid.bits == 4 and grid.lows is not None and group in groups
    if not readable or len(quantized.shape) != 2 or rows % LANES:
        raise ValueError(
            'the int4 kernel takes quantize(weight, 4, group, "minimum") of a matrix, rows in multiples of 16 and '
            f"a group of {groups}, not {rows} rows of {grid.bits} bits in groups of {group}; use Plain"
        )
    return group


def scales_and_zeros(quantized: Integers) -> Tensor:
    """(K / group, N, 2) in the matrix's dtype: of each group its scale, and what its middle level stands for."""
    grid, rows = quantized.grid, quantized.shape[0]
    scales, lows = (part.double().view(rows, -1).T for part in (grid.scales, grid.lows))
    return torch.stack([scales, lows + 8 * scales], -1).to(quantized.dtype).contiguous()


def check_packed(dtype: torch.dtype) -> None:
    """Raises ValueError for a dtype of x that the packed kernels do not have."""
    if dtype not in DTYPES:
        raise ValueError(f"the packed kernels take {', '.join(map(str, DTYPES))}, not {dtype}; use Plain")
