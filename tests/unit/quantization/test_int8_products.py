"""Integers times integers: exact sums, an error that is bounded, and outlier columns that are left out of it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.quantization import cpu
from lessons_lib.quantization.cpu import (
    Int8Both,
    MixedProduct,
    WideColumns,
    integer_product,
    multiply_rounded,
    outlier_columns,
    round_rows,
    rounded_values,
    tall_product,
)
from lessons_lib.quantization.formats import Grid, quantize

WEIGHT, INPUT = torch.tensor([[1.0, 1.0, 0.001]]), torch.tensor([[0.05, -0.04, 60.0]])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(rows=st.integers(1, 5), columns=st.integers(1, 40), out=st.integers(1, 20), seed=st.integers(0, 99))
def test_integer_products_are_exact_for_any_size(rows, columns, out, seed):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8, generator=generator) for n in (rows, out))
    assert torch.equal(integer_product(x, w), (x.long() @ w.long().T).int())


@pytest.mark.parametrize("rows", [1, 16, 31, 32, 33])
def test_the_product_of_a_gpus_tensor_cores_is_given_rows_enough_and_gives_back_what_was_asked(rows, monkeypatch):
    generator, taken = torch.Generator().manual_seed(rows), []
    x, w = (torch.randint(-127, 128, (n, 24), dtype=torch.int8, generator=generator) for n in (rows, 16))
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: taken.append(len(a)) or product(a, b))
    assert torch.equal(tall_product(x, w), (x.long() @ w.long().T).int()) and taken == [max(rows, 32)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
@pytest.mark.parametrize("columns, out", [(24, 16), (23, 16), (24, 15)])
def test_integer_products_are_exact_on_a_gpu(columns, out):
    x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8) for n in (5, out))
    assert torch.equal(integer_product(x.cuda(), w.cuda()).cpu(), (x.long() @ w.long().T).int())


def test_sums_that_float32_would_round_are_exact():
    x = torch.full((1, 1101), 127, dtype=torch.int8)
    assert integer_product(x, x).item() == 127 * 127 * 1101 > 2**24


def test_each_row_has_its_own_scale():
    levels, scales = round_rows(torch.tensor([[0.05, -0.04], [100.0, 50.0], [0.0, 0.0]]))
    assert levels.tolist() == [[127, -102], [127, 64], [0, 0]]
    assert scales[:, 0].tolist() == pytest.approx([0.05 / 127, 100 / 127, 1.0])


@given(seed=st.integers(0, 99), exponent=st.integers(-20, 20))
def test_a_product_is_off_by_no_more_than_its_roundings(seed, exponent):
    """|y - x wᵀ| <= Σ |x| s_w/2 + |w| s_x/2 + s_x s_w/4."""
    x, w = random(3, 24, seed=seed) * 10.0**exponent, random(5, 24, seed=seed + 100)
    levels, scales = round_rows(w)
    _, s = round_rows(x)
    error = (multiply_rounded(x, levels, scales[:, 0]) - x @ w.T).abs()
    most = x.abs().sum(1, True) * scales.T / 2 + s / 2 * w.abs().sum(1) + 24 * s * scales.T / 4
    assert (error <= most * 1.000001).all()


def test_an_outlier_takes_all_levels_for_itself_unless_it_is_left_out():
    assert MixedProduct(WEIGHT, float("inf")).multiply(INPUT).item() == 0.0  # 0.07 is right
    assert MixedProduct(WEIGHT, 6.0).multiply(INPUT).item() == pytest.approx(0.06984, abs=1e-5)


def test_columns_with_any_value_beyond_the_threshold_are_outliers():
    x = torch.tensor([[[6.0, -6.1, 0.0]], [[1.0, 2.0, 7.0]]])
    assert outlier_columns(x).tolist() == [False, True, True]


def test_threshold_zero_is_the_plain_product_and_infinity_the_rounded_one():
    x, w = random(4, 32), random(8, 32, seed=1)
    assert torch.equal(MixedProduct(w, 0.0).multiply(x), F.linear(x, w))
    levels, scales = round_rows(w)
    assert torch.equal(MixedProduct(w, float("inf")).multiply(x), multiply_rounded(x, levels, scales[:, 0]))


@pytest.mark.parametrize("seed", range(5))
def test_leaving_one_loud_column_out_brings_most_precision_back(seed):
    x, w = random(16, 64, seed=seed), random(32, 64, seed=seed + 100)
    x[:, 5] *= 60
    plain, mixed = ((MixedProduct(w, t).multiply(x) - x @ w.T).square().mean() for t in (float("inf"), 6.0))
    assert mixed < plain / 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_result_has_the_inputs_dtype(dtype):
    x, w = random(2, 16).to(dtype) * 5, random(3, 16, seed=1).to(dtype)
    out = MixedProduct(w).multiply(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), x.double() @ w.double().T, atol=0.6, rtol=0.05)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ValueError, match="the weight holds 1 NaN or infinite"):
        MixedProduct(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="the threshold must be at least 0, not -1.0; the paper's is 6.0"):
        MixedProduct(WEIGHT, -1.0)


@pytest.mark.parametrize("integer_units", [True, False])
@pytest.mark.parametrize("columns", [64, 66])  # of which words of four bytes can be made, and cannot
@pytest.mark.parametrize("terms", [1, 2])
def test_what_a_compiler_sees_is_the_product(monkeypatch, terms, columns, integer_units):
    if integer_units and not cpu.integer_units():
        pytest.skip("this CPU has no integer units")
    monkeypatch.setattr(cpu, "integer_units", lambda: integer_units)
    w, x = random(16, columns), random(3, columns, seed=1)
    matrix = Int8Both(quantize(w, 8, "row"), terms)
    assert (matrix.words is None) == (integer_units or columns == 66)
    torch.testing.assert_close(matrix.traced(x), matrix.multiply(x), rtol=1e-4, atol=1e-4)
    wide = WideColumns(matrix, w, torch.tensor([3, 5]))
    torch.testing.assert_close(wide.traced(x), wide.multiply(x), rtol=1e-4, atol=1e-4)
    off = [(one.traced(x) - x @ w.T).abs().max() for one in (Int8Both(quantize(w, 8, "row"), terms), wide)]
    assert off[1] < off[0]


def test_a_second_term_leaves_a_254th_of_what_the_first_leaves():
    x = random(64, 32)
    steps = x.abs().amax(-1, True) / 127
    for terms, part in ((1, 1), (2, 254)):
        assert ((rounded_values(x, terms) - x).abs() <= 0.501 * steps / part).all()


def test_elsewhere_than_on_a_cpu_a_compiler_sees_integers_times_integers(monkeypatch):
    made = quantize(random(16, 24), 8)
    there = Int8Both(replace(made, codes=made.codes.to("meta"), grid=Grid(8, made.grid.scales.to("meta"))))
    assert there.words is None and not there.constant
    monkeypatch.setattr(there, "multiply", lambda x: "integers")
    assert there.traced(random(1, 24)) == "integers"
