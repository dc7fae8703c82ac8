"""The layers with kernels for CPUs against the matmul with the rounded weight and without the kernels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cpu import by_kernel
from support.rounded import DTYPES, ROUNDING, compiled, random
from torch import Tensor, nn

from lessons_lib.quantization import cpu
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.linear import (
    InterleavedW4A16Linear,
    NativeW4A8Linear,
    OneDNNW8A8Linear,
    PackedW4A16Linear,
    PackedW8A8Linear,
    PackedW8A16Linear,
)
from lessons_lib.quantization.floats import quantize_nf4
from lessons_lib.quantization.integers import Integers, quantize
from lessons_lib.quantization.linear import (
    DequantizedLinear,
    W4A8Linear,
    W4A16Linear,
    W8A8Linear,
    W8A16Linear,
    fastest,
    round_groups,
    weight_only,
)


@pytest.fixture(params=[True, False], ids=["AVX512", "AVX2"])
def packed_kernels(request, monkeypatch):
    """A CPU with and one without vectorised packed kernels; both run here, fast or not."""
    monkeypatch.setattr(cpu, "packed_kernels", lambda: request.param)


def check(layer: nn.Module, restored: Tensor, x: Tensor) -> None:
    """As the matmul with the restored weight, but for the dtype's rounding of a sum of that size."""
    right = x.double() @ restored.double().T
    size = x.double().abs() @ restored.double().abs().T
    for out in (layer(x), compiled(layer)(x)):
        assert out.dtype == x.dtype and out.shape == right.shape
        assert ((out.double() - right).abs() <= ROUNDING[x.dtype] * size).all()


@DTYPES
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("columns", [96, 40, 42])  # of which torch's kernel reads 16 at a time
def test_w8a16_on_a_cpu_gives_the_matmul_with_the_rounded_weight(dtype, rows, columns, packed_kernels):
    quantized = quantize(random(33, columns, dtype=dtype), 8, scale_dtype=dtype)
    check(PackedW8A16Linear(quantized), quantized.dequantize(), random(rows, columns, seed=1, dtype=dtype))


@DTYPES
def test_w8a16_on_a_cpu_takes_a_row_wherever_it_begins_in_memory(dtype, packed_kernels):
    quantized, x = quantize(random(33, 64, dtype=dtype), 8, scale_dtype=dtype), random(1, 65, seed=1, dtype=dtype)
    check(PackedW8A16Linear(quantized), quantized.dequantize(), x[:, 1:])


@DTYPES
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_w4a16_on_a_cpu_gives_the_matmul_with_the_rounded_weight(dtype, group, rows):
    quantized = quantize((random(48, 128) + 0.3).to(dtype), 4, group, "affine", torch.float32)
    x = random(rows, 128, seed=1, dtype=dtype)
    for kind in (PackedW4A16Linear, InterleavedW4A16Linear)[: 2 if group == 32 else 1]:
        check(kind(quantized), quantized.dequantize(), x)


def on_meta(quantized: Integers) -> Integers:
    return Integers(quantized.shape, quantized.dtype, quantized.codes.to("meta"), quantized.grid)


def test_weight_only_layers_have_a_kernel_where_there_is_one(packed_kernels):
    w = random(16, 64)
    eight, four = quantize(w), quantize(w, 4, 32, "affine")
    assert type(weight_only(eight)) is PackedW8A16Linear
    assert type(weight_only(four)) is (PackedW4A16Linear if cpu.packed_kernels() else InterleavedW4A16Linear)
    for plain in (quantize(w, 4, 16, "affine"), quantize(w.double(), 4, 32, "affine"),
                  quantize(random(8, 64), 4, 32, "affine")):  # fmt: skip
        assert type(weight_only(plain)) is W4A16Linear
    assert type(weight_only(quantize(w.double()))) is type(weight_only(on_meta(eight))) is W8A16Linear
    for other in (quantize(w, 8, 32), quantize(w, 8, "row", "zero_point"), quantize(w, 4, 32), quantize_nf4(w),
                  quantize(w, 4, "tensor", "affine")):  # fmt: skip
        assert type(weight_only(other)) is DequantizedLinear


@pytest.mark.parametrize("units, kind", [(True, OneDNNW8A8Linear), (False, PackedW8A8Linear)])
def test_w8a8_takes_the_integer_units_of_a_cpu_where_it_has_them(units, kind, monkeypatch):
    monkeypatch.setattr(cpu, "integer_units", lambda: units)
    layer = fastest(W8A8Linear, quantize(random(16, 64)), 2)
    assert type(layer) is kind and layer.terms == 2 and layer.constant == units


@pytest.mark.parametrize("columns", [64, 66])  # of which words of four bytes can be made, and cannot
def test_a_cpu_without_integer_units_multiplies_the_values_of_the_codes(columns):
    w, x = random(16, columns, dtype=torch.float64), random(3, columns, seed=1, dtype=torch.float64)
    layer = PackedW8A8Linear(quantize(w, 8, "row"))
    assert (layer.packed is None) == (columns == 66)
    torch.testing.assert_close(layer(x), W8A8Linear(quantize(w, 8, "row"))(x), rtol=1e-4, atol=1e-4)


GROUP_ERRORS = {
    torch.float32: 1e-6,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}  # a step of the last digit; of float32 a few


def by_groups(x: torch.Tensor, quantized) -> torch.Tensor:
    """The sum over groups of s·r·sum(q·p) + low·r·sum(p), in float64."""
    q, n = quantized.levels().double().view(quantized.shape[0], -1, 32), quantized.shape[0]
    s, low = (part.double().view(n, -1) for part in (quantized.grid.scales, quantized.grid.lows))
    x = x.float().view(len(x), -1, 32)
    r = x.abs().amax(-1) / 127
    p = (x / torch.where(r == 0, 1, r)[..., None]).round().double()
    products = torch.einsum("ngk,tgk->tng", q, p)
    return (s * products * r.double()[:, None] + low * (r * p.sum(-1))[:, None]).sum(-1)


@by_kernel
@given(
    rows=st.integers(1, 27), blocks=st.integers(1, 9), groups=st.integers(1, 4), bits=st.sampled_from([4, 8]),
    dtype=st.sampled_from([*GROUP_ERRORS]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernel_adds_up_what_the_formula_says(rows, blocks, groups, bits, dtype, seed):
    """Up to 27 rows: two calls of 12 rows, the most, and a rest. Up to 9 blocks: more than one thread's share."""
    x = random(rows, 32 * groups, seed=seed, dtype=dtype)
    quantized = quantize(random(16 * blocks, 32 * groups, seed=seed + 100), bits, 32, "affine")
    found, exact = NativeW4A8Linear(quantized)(x), by_groups(x, quantized)
    assert found.dtype == dtype
    assert ((found.double() - exact).abs() <= GROUP_ERRORS[dtype] * exact.abs().max()).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [*GROUP_ERRORS])
def test_without_the_kernel_rounded_inputs_meet_what_multiplies_such_weights(bits, rows, dtype, monkeypatch):
    monkeypatch.setattr(native, "problem", lambda: "no kernel today")
    x, weight = random(rows, 96, dtype=dtype), random(32, 96, seed=1, dtype=dtype)
    quantized = quantize(weight, bits, 32, "affine")
    layer, exact = fastest(W4A8Linear, quantized), by_groups(x, quantized)
    found = layer(x)
    assert type(layer) is W4A8Linear and found.dtype == dtype
    assert (found.double() - exact).abs().max() <= 5 * GROUP_ERRORS[dtype] * exact.abs().max()


@by_kernel
def test_inputs_of_any_stride_and_of_nothing_but_zeros():
    quantized = quantize(random(16, 32), 4, 32, "affine")
    layer, x = NativeW4A8Linear(quantized), random(32, 6, seed=1).T
    assert not x.is_contiguous() and torch.equal(layer(x), layer(x.contiguous()))
    assert torch.equal(layer(torch.zeros(2, 32)), torch.zeros(2, 16))


@pytest.mark.parametrize("quantized", [
    quantize(random(20, 32), 4, 32, "affine"), quantize(random(16, 32), 4, 32, "affine", scale_dtype=torch.float32),
    quantize(random(16, 32, dtype=torch.float64), 4, 32, "affine"),
], ids=["rows", "scales", "dtype"])  # fmt: skip
def test_what_the_kernel_cannot_take_is_multiplied_without_it(quantized):
    layer, x = fastest(W4A8Linear, quantized), random(2, 32, dtype=quantized.dtype)
    assert type(layer) is W4A8Linear
    torch.testing.assert_close(layer(x), round_groups(x) @ quantized.dequantize().T)


@by_kernel
def test_what_the_kernel_can_take_goes_through_it():
    assert type(fastest(W4A8Linear, quantize(random(16, 32), 8, 32, "affine"))) is NativeW4A8Linear


@pytest.mark.parametrize("how", [(3, 32, "affine"), (4, 16, "affine"), (4, 64, "affine"), (8, 32, "absmax")])
@pytest.mark.parametrize("kind", [W4A8Linear, NativeW4A8Linear])
def test_other_formats_are_refused(kind, how):
    with pytest.raises(ValueError, match='takes quantize.weight, 4 or 8, 32, "affine".'):
        kind(quantize(random(16, 64), *how))


@by_kernel
@pytest.mark.parametrize("x, sentence", [
    (torch.zeros(1, 64), r"x is \[1, 64\], not \(T, 32\)"), (torch.zeros(32), "not .T, 32"),
    (torch.zeros(1, 32, dtype=torch.float64), "float32, bfloat16 and float16, not Double"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(x, sentence):
    with pytest.raises(ValueError, match=sentence):
        NativeW4A8Linear(quantize(random(16, 32), 4, 32, "affine"))(x)


@by_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_with_the_kernel_and_without(value):
    quantized, x = quantize(random(16, 64), 4, 32, "affine"), random(2, 64, seed=1)
    x[1, 40] = value
    for kind in (NativeW4A8Linear, W4A8Linear):
        found = kind(quantized)(x)
        assert found[0].isfinite().all() and found[1].isnan().all()


@by_kernel
def test_a_compiler_knows_the_shape_whatever_is_laid_out():
    layer = NativeW4A8Linear(quantize(random(32, 64), 4, 32, "affine"))
    operator = torch.ops.lessons_lib.multiply_grouped.default
    for x in (random(3, 64), random(64, 3).T, random(3, 64, dtype=torch.bfloat16)):
        torch.library.opcheck(
            operator, (x, layer.codes, layer.scales_and_minima, 4), test_utils=("test_schema", "test_faketensor")
        )
