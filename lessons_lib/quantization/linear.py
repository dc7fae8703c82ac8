"""Linear layers with quantized weights (lessons 10, 11): modules that take the place of an nn.Linear.

    W8A16Linear        weights of 8 bits, a scale per row; activations as they are
    W4A16Linear        weights of 4 bits in groups, with a scale and a minimum per group; activations as they are
    W8A8Linear         weights and activations of 8 bits, a scale per row of either
    W4A8Linear         weights of 4 bits and activations of 8, both in groups of 32
    LLMInt8Linear      W8A8, but outlier columns of the activations are multiplied in full precision
    OutlierColumns     a quantized layer beside a few columns, known beforehand, in full precision
    DequantizedLinear  weights of any format, turned back into values at every call
    FakeQuantLinear    weights of any format, turned back into values once: to measure quality

The classes here say what each computes, on any device. Faster forms of the same classes, with the kernels of one kind
of device, are in `quantization.cpu` and `quantization.cuda`; `fastest` picks one. `quantize_model` swaps them in.
"""

import copy
from collections.abc import Container, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.quantization.formats import Integers, Quantized, check_values, unpack

GROUP = 32  # weights, and activations, of one scale in W4A8
LARGEST = 127  # of the codes of 8 bits
THRESHOLD = 6.0  # of LLM.int8()
VNNI = torch.cpu._is_vnni_supported()  # without it, torch's integer matmul overflows on some CPUs
TALL = 32  # rows of torch's integer matmul on a GPU, which asks for more than 16


def sharing_copy(network: nn.Module, but: Container[int] = ()) -> nn.Module:
    """New modules around the network's own tensors: to change a module in the copy leaves the network as it is.

    but: ids of tensors that are copied as well.
    """
    held = [t for module in network.modules() for t in tensors(module) if id(t) not in but]
    return copy.deepcopy(network, {id(t): t for t in held})


def tensors(module: nn.Module) -> list[Tensor]:
    """The parameters, buffers and other tensors of one module, its submodules left out."""
    parts = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    return [part for part in parts if isinstance(part, Tensor)]


def storage_bytes(parts: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors; what two of them share counts once."""
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}.values())


class QuantizedLinear(nn.Module):
    """A linear layer without a bias whose weight (N, K) is kept in few bits.

    forward: x (T, K) -> x Wᵀ (T, N) in x's dtype. constant: whether a compiler has to see the codes as constants.
    """

    constant = False

    def __init__(self, shape: torch.Size):
        super().__init__()
        if len(shape) != 2:
            raise ValueError(f"a layer takes the codes of a matrix (N, K), not of {tuple(shape)}")
        self.out_features, self.in_features = shape

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept, which one forward pass reads; memory that two of them share counts once."""
        return storage_bytes(t for module in self.modules() for t in tensors(module))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.nbytes} bytes"


class W8A16Linear(QuantizedLinear):
    """codes (N, K) int8 and scales (N,): y = (x codesᵀ)·scales."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but `quantize(weight, 8, "row", "absmax")`."""
        super().__init__(quantized.shape)
        codes, scales = signed_rows(quantized)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.codes.to(x.dtype)) * self.scales.to(x.dtype)


class W4A16Linear(QuantizedLinear):
    """codes 0 .. 15, two in a byte, with scales and minima (N, K / group): w = code·scale + minimum."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but `quantize(weight, 4, group, "minimum")`."""
        super().__init__(quantized.shape)
        self.group, self.dtype = check_groups(quantized, (4,)), quantized.dtype
        self.register_buffer("codes", quantized.codes)
        for name, part in (("scales", quantized.grid.scales), ("minima", quantized.grid.lows)):
            self.register_buffer(name, part.view(self.out_features, -1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantize().to(x.dtype))

    def dequantize(self) -> Tensor:
        """The values (N, K) that the codes stand for, in the dtype of the original weight."""
        exact = torch.promote_types(self.dtype, torch.float32)
        codes = unpack(self.codes, 4, self.out_features * self.in_features).view(self.out_features, -1, self.group)
        values = codes.to(exact) * self.scales[..., None].to(exact) + self.minima[..., None].to(exact)
        return values.view(self.out_features, -1).to(self.dtype)


class W8A8Linear(QuantizedLinear):
    """codes (N, K) int8 and scales (N,); each row of x is rounded likewise: y = s_x·s_w·(q_x q_wᵀ), sums in integers.

    terms: 2 rounds activations to the sum of two codes (`round_rows`), for matrices that 8 bits of x would harm.
    """

    def __init__(self, quantized: Integers, terms: int = 1):
        """Raises ValueError for anything but `quantize(weight, 8, "row", "absmax")`, and other terms than 1 and 2."""
        if terms not in (1, 2):
            raise ValueError(f"activations are rounded to 1 or 2 terms of 8 bits, not {terms}")
        super().__init__(quantized.shape)
        self.terms = terms
        codes, scales = signed_rows(quantized)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales.to(torch.promote_types(scales.dtype, torch.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return multiply_rounded(x, self.codes, self.scales, self.terms)


class W4A8Linear(QuantizedLinear):
    """Weights of 4 bits (8 for the head) in groups of 32 times x in 8 bits, a scale for each 32 values of a row."""

    def __init__(self, quantized: Integers):
        """Raises ValueError for anything but `quantize(weight, 4 or 8, 32, "minimum")`."""
        super().__init__(quantized.shape)
        check_groups(quantized, (4, 8), (GROUP,))
        self.weights = weight_only(quantized)

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(round_groups(x))


class LLMInt8Linear(QuantizedLinear):
    """LLM.int8() (Dettmers et al. 2022, arXiv 2208.07339): outlier columns of x in full precision, the rest as W8A8.

    Which columns are outliers is known only when x is, so the weight is kept as well: this saves arithmetic, no bytes.
    threshold: inf leaves nothing out.
    """

    def __init__(self, weight: Tensor, threshold: float = THRESHOLD):
        """weight (N, K). Raises ValueError for values that are not finite and a threshold below 0."""
        check_values(weight, "the weight")
        if not threshold >= 0:
            raise ValueError(f"the threshold must be at least 0, not {threshold}; the paper's is {THRESHOLD}")
        super().__init__(weight.shape)
        self.threshold = threshold
        codes, scales = round_rows(weight.detach())
        for name, part in (("weight", weight.detach()), ("codes", codes), ("scales", scales[:, 0])):
            self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        outliers = outlier_columns(x, self.threshold)
        exact = F.linear(x[:, outliers], self.weight[:, outliers].to(x.dtype))
        return exact + multiply_rounded(x.masked_fill(outliers, 0), self.codes, self.scales)


class OutlierColumns(QuantizedLinear):
    """A quantized layer for most of x, and the weight as it is for a few columns whose inputs are known to be large.

    Without them in x, one scale a row leaves finer steps to the other columns.
    """

    def __init__(self, rest: QuantizedLinear, weight: Tensor, columns: Tensor):
        """columns: numbers (C,) of the columns of weight (N, K) that are multiplied in full precision."""
        super().__init__(weight.shape)
        self.rest = rest
        self.register_buffer("columns", columns)
        self.register_buffer("weight", weight.detach()[:, columns].contiguous())
        others = torch.ones(weight.shape[1], dtype=weight.dtype, device=weight.device)
        self.register_buffer("others", others.index_fill(0, columns, 0))

    @property
    def constant(self) -> bool:
        """As the layer within."""
        return self.rest.constant

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(x * self.others.to(x)) + F.linear(x[:, self.columns], self.weight.to(x.dtype))


class ScaledLinear(QuantizedLinear):
    """A layer that holds W·diag(s), for inputs that no norm before it has divided by s (K,) yet."""

    def __init__(self, linear: QuantizedLinear, scales: Tensor):
        super().__init__((linear.out_features, linear.in_features))
        self.linear = linear
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x / self.scales.to(x))


class DequantizedLinear(QuantizedLinear):
    """Weights of any format, turned back into values at every call. Its buffers are the format's own tensors."""

    def __init__(self, quantized: Quantized):
        super().__init__(quantized.shape)
        self.format = without_tensors(quantized, "", self.register_buffer)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, with_tensors(self.format, "", self._buffers).dequantize().to(x.dtype))


class FakeQuantLinear(QuantizedLinear):
    """Weights of any format, turned back into values once: as exact as the format, as fast and wide as before.

    `nbytes` are those of the format.
    """

    def __init__(self, quantized: Quantized):
        weight = quantized.dequantize()
        super().__init__(weight.shape)
        self.register_buffer("weight", weight)
        self.format_bytes = quantized.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that the quantized tensor took."""
        return self.format_bytes

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def weight_only(quantized: Quantized) -> QuantizedLinear:
    """W8A16Linear or W4A16Linear of a tensor (N, K) in the format of one, else DequantizedLinear; the fastest form."""
    grid = quantized.grid if isinstance(quantized, Integers) else None
    if grid and grid.bits == 8 and grid.zeros is None and grid.lows is None and len(grid.scales) == quantized.shape[0]:
        return fastest(W8A16Linear, quantized)
    if grid and grid.bits == 4 and grid.lows is not None and len(quantized.shape) == 2:
        return fastest(W4A16Linear, quantized)
    return DequantizedLinear(quantized)


def fastest(kind: type[QuantizedLinear], quantized: Integers, *options) -> QuantizedLinear:
    """A layer of this kind in the form that has kernels here for these sizes and this dtype; else the class itself."""
    device = quantized.codes.device.type
    if device == "cpu":
        from lessons_lib.quantization.cpu.linear import kernel_of
    elif device == "cuda":
        from lessons_lib.quantization.cuda import kernel_of
    else:
        return kind(quantized, *options)
    return (kernel_of(kind, quantized) or kind)(quantized, *options)


def round_rows(x: Tensor, terms: int = 1) -> tuple[Tensor, Tensor]:
    """x (T, K) -> codes (terms·T, K) int8 in [-127, 127] and scales (terms·T, 1), in single precision or better.

    A second term rounds what the first left over, 254 times as finely: x is nearly its first T rows of codes times
    scales plus the next T. That takes another row of the matmul, and no other kernel.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    scales = exact.abs().amax(-1, True) / LARGEST
    scales = torch.where(scales == 0, 1, scales)
    codes = (exact / scales).round().clamp(-LARGEST, LARGEST)
    if terms == 1:
        return codes.to(torch.int8), scales
    fine = scales / (2 * LARGEST)
    rest = ((exact - codes * scales) / fine).round().clamp(-LARGEST, LARGEST)
    return torch.cat([codes, rest]).to(torch.int8), torch.cat([scales, fine])


def rounded_values(x: Tensor, terms: int) -> Tensor:
    """x (T, K) as its codes stand for it, in single precision or better."""
    codes, scales = round_rows(x, terms)
    return (codes * scales).unflatten(0, (terms, len(x))).sum(0)


def round_groups(x: Tensor) -> Tensor:
    """x (T, K) rounded to 8 bits, one scale for 32 values -> the values that these stand for, in x's dtype."""
    return rounded_values(x.reshape(-1, GROUP), 1).view(x.shape).to(x.dtype)


def multiply_rounded(x: Tensor, codes: Tensor, scales: Tensor, terms: int = 1) -> Tensor:
    """x (T, K), weight as codes (N, K) int8 and scales (N,) -> (T, N) in x's dtype: s_x·s_w·(q_x q_wᵀ)."""
    rounded, s = round_rows(x, terms)
    return add_terms(integer_matmul(rounded, codes) * s * scales.to(s), terms).to(x.dtype)


def add_terms(product: Tensor, terms: int) -> Tensor:
    """(terms·T, N) -> (T, N)."""
    return product if terms == 1 else product.unflatten(0, (terms, -1)).sum(0)


def integer_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, K) and weight (N, K), both int8 -> x Wᵀ (T, N) int32, exact.

    Exact as long as int32 holds the sum: K up to 133,000 codes of at most 127. torch's own integer matmul runs where it
    is exact and takes these sizes, else float64.
    """
    if x.shape[1] == 1:  # of which torch's matmul makes nonsense on some CPUs
        return x.int() * weight.int().T
    if x.device.type == "cpu" and VNNI:
        return torch._int_mm(x, weight.T)
    if x.device.type == "cuda" and not (x.shape[1] % 8 or weight.shape[0] % 8):
        return tall_matmul(x, weight)
    return (x.double() @ weight.double().T).int()


def tall_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """As `integer_matmul`, x padded to TALL rows: a GPU's tensor cores take no fewer."""
    return torch._int_mm(F.pad(x, (0, 0, 0, max(0, TALL - len(x)))), weight.T)[: len(x)]


def outlier_columns(x: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """x (..., K) -> bool (K,): columns with any value beyond the threshold."""
    return (x.abs() > threshold).flatten(0, -2).any(0)


def signed_rows(quantized: Integers) -> tuple[Tensor, Tensor]:
    """8 bits, absmax, per row -> codes (N, K) int8 in [-127, 127] and scales (N,); anything else is a ValueError."""
    grid = quantized.grid
    symmetric = grid.zeros is None and grid.lows is None
    if grid.bits != 8 or not symmetric or len(grid.scales) != quantized.shape[0]:
        raise ValueError('layers of 8 bits take quantize(weight, 8, "row", "absmax")')
    return (quantized.levels().short() - 128).to(torch.int8), grid.scales[:, 0].to(quantized.dtype)


def check_groups(quantized: Integers, bits: tuple[int, ...], groups: tuple[int, ...] | None = None) -> int:
    """The size of its groups. ValueError unless this is a matrix of so many bits in such groups with minima."""
    grid = quantized.grid
    group = quantized.shape.numel() // len(grid.scales)
    if grid.bits not in bits or grid.lows is None or (groups and group not in groups):
        raise ValueError(
            f"this layer takes quantize(weight, {' or '.join(map(str, bits))}, "
            f'{" or ".join(map(str, groups or ("group",)))}, "minimum"), '
            f"not {grid.bits} bits in groups of {group}"
        )
    return group


def scales_and_zeros(quantized: Integers) -> Tensor:
    """(K / group, N, 2) as torch's kernels of 4 bits read them: of each group its scale, and what code 8 stands for."""
    grid, rows = quantized.grid, quantized.shape[0]
    scales, lows = (part.double().view(rows, -1).T for part in (grid.scales, grid.lows))
    return torch.stack([scales, lows + 8 * scales], -1).to(quantized.dtype).contiguous()


def without_tensors(part: Any, name: str, keep) -> Any:
    """A dataclass with None in place of each tensor, which goes to keep(name, tensor); fields of fields likewise."""
    given = {f.name: getattr(part, f.name) for f in fields(part)}
    for key, value in given.items():
        if isinstance(value, Tensor):
            keep(f"{name}{key}", value)
            given[key] = None
        elif is_dataclass(value):
            given[key] = without_tensors(value, f"{name}{key}_", keep)
    return replace(part, **given)


def with_tensors(part: Any, name: str, kept: dict[str, Tensor]) -> Any:
    """The inverse: the dataclass with its tensors, by name, out of `kept`."""
    given = {f.name: getattr(part, f.name) for f in fields(part)}
    for key, value in given.items():
        if is_dataclass(value):
            given[key] = with_tensors(value, f"{name}{key}_", kept)
        else:
            given[key] = kept.get(f"{name}{key}", value)
    return replace(part, **given)
