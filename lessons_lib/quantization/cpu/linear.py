"""The layers of `quantization.linear` with CPU kernels (lessons 10, 11); `kernel_of` picks one.

Each has two versions of its forward pass: eager code calls one kernel, compiled code uses operations that torch.compile
can fuse.
"""

import torch
from torch import Tensor

from lessons_lib.quantization import cpu
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.layouts import (
    LANES,
    as_floats,
    interleaved,
    multiply_codes,
    pack_nibbles,
    scales_and_minima,
    side_by_side,
    times_bytes,
    times_nibbles,
)
from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.linear import (
    GROUP,
    QuantizedLinear,
    W4A8Linear,
    W4A16Linear,
    W8A8Linear,
    W8A16Linear,
    add_terms,
    check_groups,
    round_rows,
    rounded_values,
    scales_and_zeros,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # supported by the kernels
INT4_GROUPS = (32, 64, 128, 256)
GROUP_SIZES = {group: torch.tensor(group) for group in INT4_GROUPS}  # as tensors, which one operator requires
FEW = 4  # rows up to which torch's packed 8-bit kernel is faster than converting the codes
AT_A_TIME = 16  # values of x in each word that this kernel reads


def kernel_of(kind: type[QuantizedLinear], quantized: Integers) -> type[QuantizedLinear] | None:
    """The version of this layer that has a kernel for the matrix's shape and dtype; None if there is none."""
    fits = quantized.dtype in DTYPES and quantized.shape[0] % LANES == 0
    group = quantized.shape.numel() // len(quantized.grid.scales)
    if kind is W8A16Linear:
        return PackedW8A16Linear if quantized.dtype in DTYPES else None
    if kind is W8A8Linear:
        return OneDNNW8A8Linear if cpu.integer_units() else PackedW8A8Linear
    if kind is W4A16Linear and cpu.packed_kernels():
        return PackedW4A16Linear if fits and group in INT4_GROUPS else None
    if kind is W4A16Linear:
        return InterleavedW4A16Linear if fits and group == GROUP else None
    if kind is W4A8Linear and fits and quantized.grid.scales.dtype == torch.float16 and not native.problem():
        return NativeW4A8Linear
    return None


class SeenAsFloats(QuantizedLinear):
    """A layer with `packed`, a float32 view of its codes for compiled code, in the same memory.

    It is no buffer, because `to` must not convert it. It is made anew wherever the codes may be other tensors, and not
    stored, because torch stores no memory under two dtypes.
    """

    packed: Tensor | None

    def __getstate__(self) -> dict:
        return {name: value for name, value in super().__getstate__().items() if name != "packed"}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self.packed = as_floats(self.codes)

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        self.packed = as_floats(self.codes)
        return self

    def _load_from_state_dict(self, *args) -> None:
        super()._load_from_state_dict(*args)
        self.packed = as_floats(self.codes)


class PackedW8A16Linear(SeenAsFloats, W8A16Linear):
    """W8A16 by torch's packed kernel for few rows; compiled, as sums over the codes, four of them in a word.

    x may have any dtype; the kernel is used for DTYPES.
    """

    def __init__(self, quantized: Integers):
        super().__init__(quantized)
        self.packed = as_floats(self.codes)

    def forward(self, x: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling()
        if not compiling and self._kernel_reads(x):
            return torch._weight_int8pack_mm(x.contiguous(), self.codes, self.scales.to(x.dtype))
        wide = x.float() if x.dtype == torch.float16 else x  # float16 cannot hold sums of codes without their scales
        packed = compiling and self.packed is not None
        product = times_bytes(wide, self.packed) if packed else multiply_codes(wide, self.codes)
        return (product * self.scales.to(wide)).to(x.dtype)

    def _kernel_reads(self, x: Tensor) -> bool:
        """Whether torch's kernel is fast and right for x (T, K), of which it reads aligned words, without a check."""
        fast = cpu.packed_kernels() and len(x) <= FEW and x.dtype in DTYPES
        return fast and self.in_features % AT_A_TIME == 0 and x.data_ptr() % (2 * AT_A_TIME) == 0  # 2 bytes each


class PackedW4A16Linear(QuantizedLinear):
    """W4A16 by torch's packed kernel for CPUs with AVX512; x in DTYPES.

    The kernel reads scale and zero in x's dtype: in bf16 they are rounded once more than in the quantized tensor. It
    also runs for many rows, although dequantized weights would be faster there, because the codes are in its own
    layout.
    """

    def __init__(self, quantized: Integers):
        """quantized: 4 bits, kind "affine", a group size in INT4_GROUPS."""
        super().__init__(quantized.shape)
        self.group = check_groups(quantized, (4,), INT4_GROUPS)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(quantized.levels().int(), 1)
        self.register_buffer("codes", packed)
        self.register_buffer("scales_and_zeros", scales_and_zeros(quantized))

    def forward(self, x: Tensor) -> Tensor:
        both = self.scales_and_zeros.to(x.dtype)
        if torch.compiler.is_compiling():
            # torch.compile would substitute this operator itself, but in a layer that is compiled once for all layers
            # it loses the group size
            return torch.ops.quantized.int4mm_packed_weight_cpu(
                x.contiguous(), self.codes, GROUP_SIZES[self.group], both
            )
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.codes, self.group, both)


class InterleavedW4A16Linear(SeenAsFloats):
    """W4A16 in groups of 32 for CPUs without AVX512: eight codes in a word, 16 rows interleaved; x in any dtype."""

    def __init__(self, quantized: Integers):
        """quantized: 4 bits, kind "affine", groups of 32."""
        super().__init__(quantized.shape)
        check_groups(quantized, (4,), (GROUP,))
        rows, grid = quantized.shape[0], quantized.grid
        self.register_buffer("codes", pack_nibbles(quantized.levels()).view(torch.int32))
        self.packed = as_floats(self.codes)
        self.register_buffer("scales", side_by_side(grid.scales, rows))
        self.register_buffer("minima", side_by_side(grid.lows, rows))

    def forward(self, x: Tensor) -> Tensor:
        return times_nibbles(x, self.packed, self.scales, self.minima).to(x.dtype)


class OneDNNW8A8Linear(W8A8Linear):
    """W8A8 for CPUs with VNNI; compiled, by oneDNN's operator, whose codes, scales and zeros must be constants.

    The compiler packs the codes ahead of time and tunes a loop for the matmul. oneDNN expects unsigned activations:
    codes + 128, with zero point 128. It supports only one activation scale, so the scales of the rows are applied
    afterwards.
    """

    constant = True

    def __init__(self, quantized: Integers, terms: int = 1):
        super().__init__(quantized, terms)
        self.scales = self.scales.float()  # oneDNN requires float32; exact for 16-bit scales
        self.register_buffer("zeros", torch.zeros_like(self.scales, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(x)
        rounded, s = round_rows(x, self.terms)
        return add_terms(onednn_matmul(rounded, self.codes, self.scales, self.zeros) * s, self.terms).to(x.dtype)


def onednn_matmul(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """x (T, K) and codes (N, K), both int8, scales (N,) float32, zeros (N,) int32 -> x codesᵀ·scales (T, N) float32."""
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    unsigned, rest = (x.short() + 128).to(torch.uint8), (None, 1.0, 0, torch.float32, "none", [], "")
    return torch.ops.onednn.qlinear_pointwise(unsigned, 1.0, 128, packed, scales, zeros, *rest)


@torch.library.register_fake("onednn::qlinear_prepack")
def _prepacked(weight: Tensor, _shape: list[int] | None) -> Tensor:
    """Output shape of oneDNN's packing for torch.compile, which torch does not register: the weight transposed."""
    return weight.new_empty(weight.shape[::-1])


class PackedW8A8Linear(SeenAsFloats, W8A8Linear):
    """W8A8 for CPUs without VNNI, where floating-point matmuls over the rounded values of x are faster.

    Sums are rounded in the seventh digit.
    """

    def __init__(self, quantized: Integers, terms: int = 1):
        super().__init__(quantized, terms)
        self.packed = as_floats(self.codes)

    def forward(self, x: Tensor) -> Tensor:
        values = rounded_values(x, self.terms)
        compiling = torch.compiler.is_compiling() and self.packed is not None
        product = times_bytes(values, self.packed) if compiling else multiply_codes(values, self.codes)
        return (product * self.scales.to(values)).to(x.dtype)


class NativeW4A8Linear(QuantizedLinear):
    """W4A8, or 8-bit weights in the same groups, by our C++ kernel (`native`), which rounds x as well; x in DTYPES."""

    def __init__(self, quantized: Integers):
        """quantized: 4 or 8 bits, kind "affine", groups of 32."""
        super().__init__(quantized.shape)
        check_groups(quantized, (4, 8), (GROUP,))
        self.bits = quantized.grid.bits
        self.register_buffer("codes", interleaved(quantized.levels(), self.bits))
        self.register_buffer("scales_and_minima", scales_and_minima(quantized))

    def forward(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N) in x's dtype."""
        return native.multiply_grouped(x, self.codes, self.scales_and_minima, self.bits)
