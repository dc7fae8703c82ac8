"""Linear layers with quantized weights (lessons 10, 11): modules that replace nn.Linear.

    W8A16Linear        8-bit weights with a scale per row; activations unchanged
    W4A16Linear        4-bit weights in groups, with a scale and a minimum per group; activations unchanged
    W8A8Linear         8-bit weights and activations, with a scale per row of either
    W4A8Linear         4-bit weights and 8-bit activations, both in groups of 32
    LLMInt8Linear      W8A8, but outlier columns of the activations are multiplied in full precision
    OutlierColumns     a quantized layer plus a few columns, known beforehand, in full precision
    DequantizedLinear  weights of any format, dequantized at every call
    FakeQuantLinear    weights of any format, dequantized once: to measure quality

The classes here define what each layer computes, on any device. `quantization.cpu` and `quantization.cuda` hold faster
versions of them with kernels for one kind of device, and `fastest` picks one. `quantize_model` replaces a decoder's
nn.Linear modules by these layers.
"""

import copy
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.quantization.integers import Integers, Quantized, check_values, unpack

GROUP = 32  # group size of weights and activations in W4A8
LARGEST = 127  # largest 8-bit code
THRESHOLD = 6.0  # outlier threshold of LLM.int8()
VNNI = torch.cpu._is_vnni_supported()  # without it, torch's integer matmul overflows on some CPUs
TALL = 32  # rows that x is padded to: torch's integer matmul on a GPU requires more than 16


def sharing_copy(network: nn.Module) -> nn.Module:
    """A copy of the network with new modules but the same tensors, so that its modules can be changed."""
    held = [t for module in network.modules() for t in tensors(module)]
    return copy.deepcopy(network, {id(t): t for t in held})


def tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, buffers and other tensor attributes of one module, without its submodules."""
    parts = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    return [part for part in parts if isinstance(part, Tensor)]


def storage_bytes(parts: Iterable[Tensor]) -> int:
    """Bytes of the storages of these tensors; a storage that several share counts once."""
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}.values())


class QuantizedLinear(nn.Module):
    """A linear layer without bias whose weight (N, K) is stored in few bits.

    forward: x (T, K) -> x Wᵀ (T, N) in x's dtype. constant: whether the compiler must treat the codes as constants.
    """

    constant = False

    def __init__(self, shape: torch.Size):
        super().__init__()
        self.out_features, self.in_features = shape

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors, which one forward pass reads; shared storage counts once."""
        return storage_bytes(t for module in self.modules() for t in tensors(module))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.nbytes} bytes"


class W8A16Linear(QuantizedLinear):
    """Weight-only, 8 bits: codes (N, K) int8 and scales (N,), y = (x codesᵀ)·scales."""

    def __init__(self, quantized: Integers):
        """quantized: from `quantize(weight, 8, "row", "absmax")`."""
        super().__init__(quantized.shape)
        codes, scales = signed_rows(quantized)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor) -> Tensor:
        scales = self.scales.to(x.dtype)
        if x.dtype == torch.float16:  # which cannot hold sums of codes without their scales
            return F.linear(x, self.codes * scales[:, None])
        return F.linear(x, self.codes.to(x.dtype)) * scales


class W4A16Linear(QuantizedLinear):
    """Weight-only, 4 bits in groups: w = code·scale + minimum.

    codes: 0 .. 15, two in a byte. scales and minima: (N, K / group).
    """

    def __init__(self, quantized: Integers):
        """quantized: from `quantize(weight, 4, group, "affine")`."""
        super().__init__(quantized.shape)
        self.group, self.dtype = check_groups(quantized, (4,)), quantized.dtype
        self.register_buffer("codes", quantized.codes)
        for name, part in (("scales", quantized.grid.scales), ("minima", quantized.grid.lows)):
            self.register_buffer(name, part.view(self.out_features, -1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantize().to(x.dtype))

    def dequantize(self) -> Tensor:
        """The weight (N, K) that the codes represent, in the dtype of the original weight."""
        exact = torch.promote_types(self.dtype, torch.float32)
        codes = unpack(self.codes, 4, self.out_features * self.in_features).view(self.out_features, -1, self.group)
        values = codes.to(exact) * self.scales[..., None].to(exact) + self.minima[..., None].to(exact)
        return values.view(self.out_features, -1).to(self.dtype)


class W8A8Linear(QuantizedLinear):
    """8-bit weights and activations: each row of x is rounded as well, y = s_x·s_w·(q_x q_wᵀ), summed in integers.

    codes (N, K) int8 and scales (N,). terms: 2 rounds activations to the sum of two codes (`round_rows`), for matrices
    whose inputs lose too much in 8 bits.
    """

    def __init__(self, quantized: Integers, terms: int = 1):
        """quantized: from `quantize(weight, 8, "row", "absmax")`. terms: 1 or 2."""
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
    """4-bit weights (8 for the head) times 8-bit activations, both in groups of 32 with a scale per group."""

    def __init__(self, quantized: Integers):
        """quantized: from `quantize(weight, 4 or 8, 32, "affine")`."""
        super().__init__(quantized.shape)
        check_groups(quantized, (4, 8), (GROUP,))
        self.weights = weight_only(quantized)

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(round_groups(x))


class LLMInt8Linear(QuantizedLinear):
    """LLM.int8() (Dettmers et al. 2022, arXiv 2208.07339): outlier columns of x in full precision, the rest as W8A8.

    The outlier columns depend on x, so the full-precision weight is kept as well: this saves arithmetic, not bytes.
    threshold: inf leaves no column out.
    """

    def __init__(self, weight: Tensor, threshold: float = THRESHOLD):
        """weight: (N, K). threshold: at least 0."""
        check_values(weight, "the weight")
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
    """A quantized layer, plus full-precision weights for a few columns whose inputs are known to be large.

    Without these columns x has a smaller range, so one scale per row is finer for the others.
    """

    def __init__(self, rest: QuantizedLinear, weight: Tensor, columns: Tensor):
        """columns: indices (C,) of the columns of weight (N, K) that are multiplied in full precision."""
        super().__init__(weight.shape)
        self.rest = rest
        self.register_buffer("columns", columns)
        self.register_buffer("weight", weight.detach()[:, columns].contiguous())
        others = torch.ones(weight.shape[1], dtype=weight.dtype, device=weight.device)
        self.register_buffer("others", others.index_fill(0, columns, 0))

    @property
    def constant(self) -> bool:
        """As the inner layer."""
        return self.rest.constant

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(x * self.others.to(x)) + F.linear(x[:, self.columns], self.weight.to(x.dtype))


class ScaledLinear(QuantizedLinear):
    """A layer that holds W·diag(s), where no norm before it divides its inputs by s (K,): it divides them itself."""

    def __init__(self, linear: QuantizedLinear, scales: Tensor):
        super().__init__((linear.out_features, linear.in_features))
        self.linear = linear
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x / self.scales.to(x))


class DequantizedLinear(QuantizedLinear):
    """Weights of any format, dequantized at every call. Its buffers are the tensors of the format."""

    def __init__(self, quantized: Quantized):
        super().__init__(quantized.shape)
        self.format = without_tensors(quantized, "", self.register_buffer)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, with_tensors(self.format, "", self._buffers).dequantize().to(x.dtype))


class FakeQuantLinear(QuantizedLinear):
    """Weights of any format, dequantized once: the format's rounding error, at the original size and speed.

    `nbytes` is that of the format.
    """

    def __init__(self, quantized: Quantized):
        weight = quantized.dequantize()
        super().__init__(weight.shape)
        self.register_buffer("weight", weight)
        self.format_bytes = quantized.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the quantized tensor."""
        return self.format_bytes

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def weight_only(quantized: Quantized) -> QuantizedLinear:
    """The fastest W8A16Linear or W4A16Linear for a quantized tensor (N, K), or DequantizedLinear for other formats."""
    grid = quantized.grid if isinstance(quantized, Integers) else None
    if grid and grid.bits == 8 and grid.symmetric and len(grid.scales) == quantized.shape[0]:
        return fastest(W8A16Linear, quantized)
    grouped = grid and len(grid.scales) >= quantized.shape[0]  # not one for all rows
    if grouped and grid.bits == 4 and grid.lows is not None:
        return fastest(W4A16Linear, quantized)
    return DequantizedLinear(quantized)


def fastest(kind: type[QuantizedLinear], quantized: Integers, *options) -> QuantizedLinear:
    """A layer of this kind: the version with a kernel for this device, shape and dtype, or else the class itself."""
    device = quantized.codes.device.type
    if device == "cpu":
        from lessons_lib.quantization.cpu.linear import kernel_of
    elif device == "cuda":
        from lessons_lib.quantization.cuda import kernel_of
    else:
        return kind(quantized, *options)
    return (kernel_of(kind, quantized) or kind)(quantized, *options)


def round_rows(x: Tensor, terms: int = 1) -> tuple[Tensor, Tensor]:
    """Round x (T, K) to 8 bits -> codes (terms·T, K) int8 in [-127, 127], scales (terms·T, 1) in float32 or better.

    A second term rounds the error of the first, 254 times as finely: x is nearly its first T rows of codes times scales
    plus the next T. It costs more rows in the matmul, but no other kernel.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    scales = exact.abs().amax(-1, True) / LARGEST
    scales = torch.where(scales == 0, 1, scales)
    # first term: round to the nearest code
    codes = (exact / scales).round().clamp(-LARGEST, LARGEST)
    if terms == 1:
        return codes.to(torch.int8), scales
    # second term: the error is at most scales / 2, so 127 codes of this finer scale cover it
    fine = scales / (2 * LARGEST)
    rest = ((exact - codes * scales) / fine).round().clamp(-LARGEST, LARGEST)
    return torch.cat([codes, rest]).to(torch.int8), torch.cat([scales, fine])


def rounded_values(x: Tensor, terms: int) -> Tensor:
    """x (T, K) rounded to 8 bits and dequantized, in float32 or better."""
    codes, scales = round_rows(x, terms)
    return (codes * scales).unflatten(0, (terms, len(x))).sum(0)


def round_groups(x: Tensor) -> Tensor:
    """x (T, K) rounded to 8 bits with one scale per 32 values and dequantized, in x's dtype."""
    return rounded_values(x.reshape(-1, GROUP), 1).view(x.shape).to(x.dtype)


def multiply_rounded(x: Tensor, codes: Tensor, scales: Tensor, terms: int = 1) -> Tensor:
    """W8A8 matmul: x (T, K), codes (N, K) int8, scales (N,) -> s_x·s_w·(q_x q_wᵀ) (T, N) in x's dtype."""
    rounded, s = round_rows(x, terms)
    return add_terms(integer_matmul(rounded, codes) * s * scales.to(s), terms).to(x.dtype)


def add_terms(product: Tensor, terms: int) -> Tensor:
    """Sum the terms of rounded activations: (terms·T, N) -> (T, N)."""
    return product if terms == 1 else product.unflatten(0, (terms, -1)).sum(0)


def integer_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, K) and weight (N, K), both int8 -> x Wᵀ (T, N) int32, exact.

    Exact as long as int32 holds the sum: up to K = 133,000 for codes of at most 127. Uses torch's integer matmul where
    that is exact and supports the shape, else float64.
    """
    if x.shape[1] == 1:  # torch's matmul returns wrong results for K = 1 on some CPUs
        return x.int() * weight.int().T
    if x.device.type == "cpu" and VNNI:
        return torch._int_mm(x, weight.T)
    if x.device.type == "cuda" and not (x.shape[1] % 8 or weight.shape[0] % 8):
        return tall_matmul(x, weight)
    return (x.double() @ weight.double().T).int()


def tall_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """As `integer_matmul`, with x padded to TALL rows, because a GPU's tensor cores take no fewer."""
    return torch._int_mm(F.pad(x, (0, 0, 0, max(0, TALL - len(x)))), weight.T)[: len(x)]


def outlier_columns(x: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """x (..., K) -> bool (K,): columns with any value above the threshold in magnitude."""
    return (x.abs() > threshold).flatten(0, -2).any(0)


def signed_rows(quantized: Integers) -> tuple[Tensor, Tensor]:
    """Codes (N, K) int8 in [-127, 127] and scales (N,) of a tensor quantized to 8 bits with absmax per row."""
    grid = quantized.grid
    if grid.bits != 8 or not grid.symmetric or len(grid.scales) != quantized.shape[0]:
        raise ValueError('layers of 8 bits take quantize(weight, 8, "row", "absmax")')
    return (quantized.levels().short() - 128).to(torch.int8), grid.scales[:, 0].to(quantized.dtype)


def check_groups(quantized: Integers, bits: tuple[int, ...], groups: tuple[int, ...] | None = None) -> int:
    """Check that the matrix has one of these bits and groups, with minima -> its group size."""
    grid = quantized.grid
    group = quantized.shape.numel() // len(grid.scales)
    if grid.bits not in bits or grid.lows is None or (groups and group not in groups):
        raise ValueError(
            f"this layer takes quantize(weight, {' or '.join(map(str, bits))}, "
            f'{" or ".join(map(str, groups or ("group",)))}, "affine"), '
            f"not {grid.bits} bits in groups of {group}"
        )
    return group


def scales_and_zeros(quantized: Integers) -> Tensor:
    """Scale and value of code 8 for each group, (K / group, N, 2), as torch's 4-bit kernels read them."""
    grid, rows = quantized.grid, quantized.shape[0]
    scales, lows = (part.double().view(rows, -1).T for part in (grid.scales, grid.lows))
    return torch.stack([scales, lows + 8 * scales], -1).to(quantized.dtype).contiguous()


def without_tensors(part: Any, name: str, keep) -> Any:
    """Replace each tensor in a dataclass by None and pass it to keep(name, tensor); nested dataclasses likewise."""
    given = {f.name: getattr(part, f.name) for f in fields(part)}
    for key, value in given.items():
        if isinstance(value, Tensor):
            keep(f"{name}{key}", value)
            given[key] = None
        elif is_dataclass(value):
            given[key] = without_tensors(value, f"{name}{key}_", keep)
    return replace(part, **given)


def with_tensors(part: Any, name: str, kept: dict[str, Tensor]) -> Any:
    """The inverse of `without_tensors`: put the tensors of `kept` back by name."""
    given = {f.name: getattr(part, f.name) for f in fields(part)}
    for key, value in given.items():
        if is_dataclass(value):
            given[key] = with_tensors(value, f"{name}{key}_", kept)
        else:
            given[key] = kept.get(f"{name}{key}", value)
    return replace(part, **given)
