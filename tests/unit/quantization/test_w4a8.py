"""Weights of 4 or 8 bits times inputs of 8, a scale for 32 of either: by the kernel in C++ and without it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.layouts import interleaved
from lessons_lib.quantization.cpu.linear import NativeW4A8Linear
from lessons_lib.quantization.formats import quantize
from lessons_lib.quantization.linear import W4A8Linear, W8A8Linear, fastest, round_groups

by_kernel = pytest.mark.usefixtures("kernels")
ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # a step of the last digit; of float32 a few


def random(*shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_groups(x: torch.Tensor, quantized) -> torch.Tensor:
    """The sum over groups of s·r·sum(q·p) + low·r·sum(p), in float64."""
    q, n = quantized.levels().double().view(quantized.shape[0], -1, 32), quantized.shape[0]
    s, low = (part.double().view(n, -1) for part in (quantized.grid.scales, quantized.grid.lows))
    x = x.float().view(len(x), -1, 32)
    r = x.abs().amax(-1) / 127
    p = (x / torch.where(r == 0, 1, r)[..., None]).round().double()
    products = torch.einsum("ngk,tgk->tng", q, p)
    return (s * products * r.double()[:, None] + low * (r * p.sum(-1))[:, None]).sum(-1)


def test_each_group_of_inputs_has_its_own_scale():
    x = torch.zeros(2, 64)
    x[0, :2], x[0, 32], x[1, 63] = torch.tensor([1.27, 0.014]), 1000.0, -0.5
    expected = x.clone()
    expected[0, 1] = 0.01
    torch.testing.assert_close(round_groups(x), expected)
    assert round_groups(x.double()).dtype == torch.float64


def test_codes_stand_by_quads_of_columns_16_rows_of_each_and_two_of_4_bits_in_a_byte():
    levels = torch.arange(16 * 32, dtype=torch.uint8).view(16, 32)
    eight = interleaved(levels, 8).view(8, 16, 4)
    assert all(torch.equal(eight[quad], levels[:, 4 * quad : 4 * quad + 4]) for quad in range(8))
    four = interleaved(levels % 16, 4).view(4, 16, 4)
    assert four.numel() == 16 * 32 / 2
    for pair in range(4):
        lower, upper = four[pair] & 15, four[pair] >> 4
        assert torch.equal(lower, levels[:, 8 * pair : 8 * pair + 4] % 16)
        assert torch.equal(upper, levels[:, 8 * pair + 4 : 8 * pair + 8] % 16)


@by_kernel
@given(
    rows=st.integers(1, 27), blocks=st.integers(1, 9), groups=st.integers(1, 4), bits=st.sampled_from([4, 8]),
    dtype=st.sampled_from([*ERRORS]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernel_adds_up_what_the_formula_says(rows, blocks, groups, bits, dtype, seed):
    """Up to 27 rows: two calls of 12 rows, the most, and a rest. Up to 9 blocks: more than one thread's share."""
    x = random(rows, 32 * groups, seed=seed, dtype=dtype)
    quantized = quantize(random(16 * blocks, 32 * groups, seed=seed + 100), bits, 32, "affine")
    found, exact = NativeW4A8Linear(quantized)(x), by_groups(x, quantized)
    assert found.dtype == dtype
    assert ((found.double() - exact).abs() <= ERRORS[dtype] * exact.abs().max()).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [*ERRORS])
def test_without_the_kernel_rounded_inputs_meet_what_multiplies_such_weights(bits, rows, dtype, monkeypatch):
    monkeypatch.setattr(native, "problem", lambda: "no kernel today")
    x, weight = random(rows, 96, dtype=dtype), random(32, 96, seed=1, dtype=dtype)
    quantized = quantize(weight, bits, 32, "affine")
    layer, exact = fastest(W4A8Linear, quantized), by_groups(x, quantized)
    found = layer(x)
    assert type(layer) is W4A8Linear and found.dtype == dtype
    assert (found.double() - exact).abs().max() <= 5 * ERRORS[dtype] * exact.abs().max()


@by_kernel
def test_inputs_of_any_stride_and_of_nothing_but_zeros():
    quantized = quantize(random(16, 32), 4, 32, "affine")
    layer, x = NativeW4A8Linear(quantized), random(32, 6, seed=1).T
    assert not x.is_contiguous() and torch.equal(layer(x), layer(x.contiguous()))
    assert torch.equal(layer(torch.zeros(2, 32)), torch.zeros(2, 16))


def test_a_loud_input_spoils_its_own_group_alone():
    """Negative control: with one scale a row it spoils all of them."""
    x, weight = random(1, 640), random(16, 640, seed=1)
    x[0, 0] = 1000.0
    weight[:, :32] = 0
    off = lambda layer: (layer(x) - x @ weight.T).abs().max()  # noqa: E731
    grouped_bits, row_bits = W4A8Linear(quantize(weight, 8, 32, "affine")), W8A8Linear(quantize(weight, 8))
    assert 20 * off(grouped_bits) < off(row_bits)


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
    with pytest.raises(ValueError, match="of a matrix"):
        kind(quantize(random(2, 16, 32), 4, 32, "affine"))


@by_kernel
@pytest.mark.parametrize("x, sentence", [
    (torch.zeros(1, 64), r"x is \[1, 64\], not \(T, 32\)"), (torch.zeros(32), "not .T, 32"),
    (torch.zeros(1, 32, dtype=torch.float64), "float32, bfloat16 and float16, not Double"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(x, sentence):
    with pytest.raises(ValueError, match=sentence):
        NativeW4A8Linear(quantize(random(16, 32), 4, 32, "affine"))(x)


@by_kernel
@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_takes_its_bits_and_one_for_the_grid(bits):
    assert NativeW4A8Linear(quantize(random(32, 96), bits, 32, "affine")).nbytes * 8 == (bits + 1) * 32 * 96


@by_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_with_the_kernel_and_without(value):
    quantized, x = quantize(random(16, 64), 4, 32, "affine"), random(2, 64, seed=1)
    x[1, 40] = value
    for kind in (NativeW4A8Linear, W4A8Linear):
        found = kind(quantized)(x)
        assert found[0].isfinite().all() and found[1].isnan().all()


@by_kernel
def test_a_compiler_is_told_the_shape_whatever_is_laid_out():
    layer = NativeW4A8Linear(quantize(random(32, 64), 4, 32, "affine"))
    operator = torch.ops.lessons_lib.multiply_grouped.default
    for x in (random(3, 64), random(64, 3).T, random(3, 64, dtype=torch.bfloat16)):
        torch.library.opcheck(
            operator, (x, layer.codes, layer.scales_and_minima, 4), test_utils=("test_schema", "test_faketensor")
        )


@by_kernel
@pytest.mark.parametrize("change", [
    lambda codes, grid: (codes[:, :, :128].contiguous(), grid, 2), lambda codes, grid: (codes, grid, 8),
    lambda codes, grid: (codes[:, :, :128], grid, 4), lambda codes, grid: (codes, grid[:1], 4),
    lambda codes, grid: (codes, grid.float(), 4), lambda codes, grid: (codes.mT.contiguous().mT, grid, 4),
])  # fmt: skip
def test_codes_that_are_laid_out_otherwise_are_refused(change):
    layer = NativeW4A8Linear(quantize(random(32, 64), 4, 32, "affine"))
    with pytest.raises(ValueError, match="laid out by quantization.cpu.layouts"):
        native.multiply_grouped(random(1, 64), *change(layer.codes, layer.scales_and_minima))
