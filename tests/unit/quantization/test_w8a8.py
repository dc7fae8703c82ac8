"""Integers times integers: exact sums, an error that is bounded, and outlier columns that are left out of it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.quantization.cpu.linear import PackedW8A8Linear
from lessons_lib.quantization.formats import quantize
from lessons_lib.quantization.linear import (
    LLMInt8Linear,
    OutlierColumns,
    W8A8Linear,
    integer_matmul,
    multiply_rounded,
    outlier_columns,
    round_rows,
    rounded_values,
    tall_matmul,
)

WEIGHT, INPUT = torch.tensor([[1.0, 1.0, 0.001]]), torch.tensor([[0.05, -0.04, 60.0]])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(rows=st.integers(1, 5), columns=st.integers(1, 40), out=st.integers(1, 20), seed=st.integers(0, 99))
def test_integer_matmuls_are_exact_for_any_size(rows, columns, out, seed):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8, generator=generator) for n in (rows, out))
    assert torch.equal(integer_matmul(x, w), (x.long() @ w.long().T).int())


@pytest.mark.parametrize("rows", [1, 16, 31, 32, 33])
def test_the_product_of_a_gpus_tensor_cores_is_given_rows_enough_and_gives_back_what_was_asked(rows, monkeypatch):
    generator, taken = torch.Generator().manual_seed(rows), []
    x, w = (torch.randint(-127, 128, (n, 24), dtype=torch.int8, generator=generator) for n in (rows, 16))
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: taken.append(len(a)) or product(a, b))
    assert torch.equal(tall_matmul(x, w), (x.long() @ w.long().T).int()) and taken == [max(rows, 32)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
@pytest.mark.parametrize("columns, out", [(24, 16), (23, 16), (24, 15)])
def test_integer_matmuls_are_exact_on_a_gpu(columns, out):
    x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8) for n in (5, out))
    assert torch.equal(integer_matmul(x.cuda(), w.cuda()).cpu(), (x.long() @ w.long().T).int())


def test_sums_that_float32_would_round_are_exact():
    x = torch.full((1, 1101), 127, dtype=torch.int8)
    assert integer_matmul(x, x).item() == 127 * 127 * 1101 > 2**24


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
    assert LLMInt8Linear(WEIGHT, float("inf"))(INPUT).item() == 0.0  # 0.07 is right
    assert LLMInt8Linear(WEIGHT, 6.0)(INPUT).item() == pytest.approx(0.06984, abs=1e-5)


def test_columns_with_any_value_beyond_the_threshold_are_outliers():
    x = torch.tensor([[[6.0, -6.1, 0.0]], [[1.0, 2.0, 7.0]]])
    assert outlier_columns(x).tolist() == [False, True, True]


def test_threshold_zero_is_the_plain_product_and_infinity_the_rounded_one():
    x, w = random(4, 32), random(8, 32, seed=1)
    assert torch.equal(LLMInt8Linear(w, 0.0)(x), F.linear(x, w))
    levels, scales = round_rows(w)
    assert torch.equal(LLMInt8Linear(w, float("inf"))(x), multiply_rounded(x, levels, scales[:, 0]))


@pytest.mark.parametrize("seed", range(5))
def test_leaving_one_loud_column_out_brings_most_precision_back(seed):
    x, w = random(16, 64, seed=seed), random(32, 64, seed=seed + 100)
    x[:, 5] *= 60
    plain, mixed = ((LLMInt8Linear(w, t)(x) - x @ w.T).square().mean() for t in (float("inf"), 6.0))
    assert mixed < plain / 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_result_has_the_inputs_dtype(dtype):
    x, w = random(2, 16).to(dtype) * 5, random(3, 16, seed=1).to(dtype)
    out = LLMInt8Linear(w)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), x.double() @ w.double().T, atol=0.6, rtol=0.05)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ValueError, match="the weight holds 1 NaN or infinite"):
        LLMInt8Linear(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="the threshold must be at least 0, not -1.0; the paper's is 6.0"):
        LLMInt8Linear(WEIGHT, -1.0)


@pytest.mark.parametrize("columns", [64, 66])  # of which words of four bytes can be made, and cannot
def test_a_cpu_without_integer_units_multiplies_the_values_of_the_codes(columns):
    w, x = random(16, columns), random(3, columns, seed=1)
    layer = PackedW8A8Linear(quantize(w, 8, "row"))
    assert (layer.packed is None) == (columns == 66)
    torch.testing.assert_close(layer(x), W8A8Linear(quantize(w, 8, "row"))(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("terms", [1, 2])
def test_columns_known_beforehand_leave_finer_steps_to_the_others(terms):
    w, x = random(16, 64), random(3, 64, seed=1)
    layer = W8A8Linear(quantize(w, 8, "row"), terms)
    x[:, [3, 5]] *= 60
    off = [(one(x) - x @ w.T).abs().max() for one in (layer, OutlierColumns(layer, w, torch.tensor([3, 5])))]
    assert off[1] < off[0] / 2


def test_a_second_term_leaves_a_254th_of_what_the_first_leaves():
    x = random(64, 32)
    steps = x.abs().amax(-1, True) / 127
    for terms, part in ((1, 1), (2, 254)):
        assert ((rounded_values(x, terms) - x).abs() <= 0.501 * steps / part).all()
