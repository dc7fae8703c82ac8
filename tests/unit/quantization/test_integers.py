"""Integers of 2 to 8 bits: worked by hand, within half a step, packed without gaps, what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lessons_lib.quantization.integers import KINDS, Integers, fit_grid, pack, quantize, rounded_up, unpack

WORKED = torch.tensor([1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4])

BITS, KIND = st.integers(2, 8), st.sampled_from(KINDS)


def random(seed: int, *shape: int) -> Tensor:
    """Normal values in float64 with a few loud ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=generator) < 0.05, 20 * x, x)


def steps(quantized: Integers) -> Tensor:
    """The step at every value, in the tensor's shape."""
    scales = quantized.grid.scales.double()
    return scales.expand(-1, quantized.shape.numel() // len(scales)).reshape(quantized.shape)


def check_half_a_step(x: Tensor, quantized: Integers) -> None:
    error = (quantized.dequantize().double() - x.double()).abs()
    assert (error <= 0.5005 * steps(quantized) + 1e-12 * x.abs().max()).all()


def test_absmax_of_eight_values_worked_by_hand():
    quantized = quantize(WORKED, 8, "tensor", scale_dtype=torch.float32)
    assert (quantized.levels().int() - 128).tolist() == [28, -12, -101, 28, -73, 19, 56, 127]
    assert quantized.grid.scales.item() == pytest.approx(5.4 / 127)


def test_zero_point_of_eight_values_worked_by_hand():
    quantized = quantize(WORKED, 8, "tensor", "zero_point", scale_dtype=torch.float32)
    assert (quantized.levels().int() - 128).tolist() == [17, -28, -128, 17, -96, 6, 48, 127]
    assert quantized.grid.zeros.item() - 128 == -15 and quantized.grid.scales.item() == pytest.approx(9.7 / 255)


@pytest.mark.parametrize("low", [10.0, 0.0, -1.0])
def test_minimum_of_four_values_worked_by_hand(low):
    quantized = quantize(torch.tensor([[0.0, 1.0, 2.4, 3.0]]) + low, 2, kind="affine")
    assert quantized.levels().tolist() == [[0, 1, 2, 3]]
    assert quantized.grid.lows.item() == low and quantized.grid.scales.item() == 1.0
    assert quantized.dequantize().tolist() == [[low, low + 1, low + 2, low + 3]]


def test_what_lies_outside_a_grid_gets_its_nearest_level():
    """As GPTQ's corrected columns may. absmax never uses code 0, so its levels are as many below zero as above."""
    x, outside = torch.tensor([[-1.0, 2.0]]), torch.tensor([[-100.0, 100.0]])
    assert fit_grid(x, 4, "absmax").encode(outside).tolist() == [[1, 15]]
    assert fit_grid(x, 4, "zero_point").encode(outside).tolist() == [[0, 15]]
    assert fit_grid(x, 4, "affine").encode(outside).tolist() == [[0, 15]]


def test_halves_go_to_the_even_level():
    quantized = quantize(torch.tensor([[0.5, 1.5, 2.5, -0.5, 7.0]]), 4)
    assert quantized.dequantize().tolist() == [[0.0, 2.0, 2.0, 0.0, 7.0]]


@given(seed=st.integers(0, 99), bits=BITS, kind=KIND, size=st.sampled_from([1, 2, 8, 32]),
       exponent=st.integers(-30, 30), offset=st.sampled_from([0.0, 3.0, -100.0]))  # fmt: skip
def test_every_value_comes_back_within_half_a_step(seed, bits, kind, size, exponent, offset):
    x = (random(seed, 3, 2 * size) + offset) * 10.0**exponent
    for per in ("tensor", "row", size):
        check_half_a_step(x, quantize(x, bits, per, kind, torch.float32))


@given(bits=BITS, kind=KIND, x=st.lists(st.floats(-6e4, 6e4, width=32), min_size=4, max_size=4),
       kept=st.sampled_from([torch.float16, torch.bfloat16]))  # fmt: skip
def test_half_a_step_holds_when_scales_are_kept_in_16_bits(bits, kind, x, kept):
    x = torch.tensor([x], dtype=torch.float64)
    check_half_a_step(x, quantize(x, bits, 2, kind, kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [torch.float16, torch.bfloat16, torch.float32])
def test_the_smallest_numbers_stay_within_half_a_step(kind, kept):
    x = torch.tensor([[1e-45, -3e-45, 1e-40, -2e-40], [1e-9, 2e-9, 0.0, -1e-9]])
    check_half_a_step(x, quantize(x, 4, 2, kind, kept))


@given(bits=BITS, kind=KIND, value=st.sampled_from([0.0, 1.0, -2.5, 384.0]))
def test_zeros_and_constants_come_back_exactly(bits, kind, value):
    """A minimum is kept as it is; by the others a constant is so many steps, exact but for float32's own rounding."""
    x = torch.full((2, 8), value)
    restored = quantize(x, bits, 4, kind, torch.float32).dequantize()
    torch.testing.assert_close(restored, x, rtol=3e-7, atol=0)
    if kind == "affine" or value == 0:
        assert torch.equal(restored, x)


@given(seed=st.integers(0, 99), bits=BITS, kind=st.sampled_from(["absmax", "zero_point"]))
def test_zero_stays_zero_beside_other_values(seed, bits, kind):
    x = random(seed, 2, 16)
    x[:, ::3] = 0
    assert (quantize(x, bits, 8, kind).dequantize()[:, ::3] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_numbers_of_float16_stay_finite(kind):
    x = torch.tensor([[65504.0, 0.0]], dtype=torch.float16)
    for bits in range(2, 9):
        check_half_a_step(x, quantize(x, bits, kind=kind))


@given(seed=st.integers(0, 99), bits=BITS, kind=KIND, power=st.integers(-60, 60))
def test_a_factor_of_a_power_of_two_changes_no_code(seed, bits, kind, power):
    x = random(seed, 2, 16).float()
    plain, scaled = (quantize(y, bits, 8, kind, torch.float32) for y in (x, x * 2.0**power))
    assert torch.equal(plain.codes, scaled.codes)


@given(seed=st.integers(0, 99), bits=BITS, kind=KIND)
def test_smaller_blocks_never_have_larger_steps(seed, bits, kind):
    """The error itself may grow all the same: see the next test."""
    x = random(seed, 4, 64)
    group, row, tensor = (steps(quantize(x, bits, per, kind, torch.float32)) for per in (16, "row", "tensor"))
    assert (group <= row * 1.000001).all() and (row <= tensor * 1.000001).all()


@given(seed=st.integers(0, 99), bits=BITS, kind=KIND)
def test_rounding_twice_changes_nothing_more(seed, bits, kind):
    once = quantize(random(seed, 2, 32), bits, 16, kind, torch.float32).dequantize()
    again = quantize(once, bits, 16, kind, torch.float32).dequantize()
    torch.testing.assert_close(again, once, rtol=1e-5, atol=1e-5)


def test_blocks_of_a_packed_model_come_back_exactly():
    """Q4_1: 32 levels a block, q·d + m with d and m in 16 bits, from code 0 to code 15."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (500, 32), generator=generator)
    codes[:, 0], codes[:, 1] = 0, 15
    scales, lows = torch.rand(500, 1, generator=generator).half() / 50, -torch.rand(500, 1, generator=generator).half()
    weight = codes * scales.float() + lows.float()
    quantized = quantize(weight, 4, 32, "affine")
    assert torch.equal(quantized.levels(), codes.to(torch.uint8)) and torch.equal(quantized.dequantize(), weight)


@pytest.mark.parametrize("bits, per, kind, expected", [
    (8, "row", "absmax", 8 + 16 / 576), (4, 32, "absmax", 4.5), (4, 32, "affine", 5.0), (4, 64, "affine", 4.5),
    (3, 64, "affine", 3.5), (2, 32, "affine", 3.0), (5, 32, "zero_point", 5.75), (8, "tensor", "absmax", 8 + 1 / 576),
])  # fmt: skip
def test_bits_per_weight_count_what_is_really_kept(bits, per, kind, expected):
    quantized = quantize(torch.ones(16, 576), bits, per, kind)
    assert quantized.bits_per_weight == pytest.approx(expected, abs=1e-12)
    assert quantized.nbytes == sum(
        t.nbytes for t in (quantized.codes, *vars(quantized.grid).values()) if torch.is_tensor(t)
    )
    if kind == "affine":
        assert expected == bits + 32 / per


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_shape_and_dtype_come_back(dtype):
    quantized = quantize(random(0, 2, 3, 8).to(dtype), 8, 4)
    assert (
        quantized.dequantize().dtype == dtype and quantized.dequantize().shape == (2, 3, 8) == quantized.levels().shape
    )


def test_16_bits_are_rounded_up_and_what_fits_is_left_alone():
    x = torch.tensor([1.0, 1.0 + 2**-12, 1.0 + 1e-8, 0.0, 1e-30], dtype=torch.float64)
    assert rounded_up(x, torch.float16).tolist() == [1.0, 1.0 + 2**-10, 1.0, 1.0, 2**-24]
    assert rounded_up(-x, torch.float16, zero=0.0).tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("options, sentence", [
    (dict(bits=1), "1 bits are not supported; choose a whole number from 2 to 8"),
    (dict(kind="log"), "there is no kind 'log'; choose one of absmax, zero_point, affine"),
    (dict(per=128), "groups of 128 do not divide rows of 576 values; 64, 32, 16, 8 would"),
])  # fmt: skip
def test_what_does_not_exist_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        quantize(torch.ones(2, 576), **options)


@pytest.mark.parametrize("x, sentence", [
    (torch.tensor([[1.0, float("nan"), float("inf")]]), "holds 2 NaN or infinite values"),
    (torch.ones(2, 4, dtype=torch.int32), "holds torch.int32; only floating-point values"),
    (torch.full((1, 4), 1e9), "is too large for torch.float16; quantize takes scale_dtype=torch.float32"),
    (torch.ones(1, 7), None),
])  # fmt: skip
def test_values_that_cannot_be_rounded_are_refused(x, sentence):
    with pytest.raises(ValueError, match=sentence or 'groups of 2 do not divide rows of 7 values; use per="row"'):
        quantize(x, 8, "row" if sentence else 2)


@given(data=st.data(), bits=st.integers(1, 8), count=st.integers(1, 70))
def test_codes_come_back_from_as_few_bytes_as_hold_them(data, bits, count):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count))
    packed = pack(torch.tensor(codes), bits)
    assert packed.dtype == torch.uint8 and len(packed) == -(-count * bits // 8)
    assert unpack(packed, bits, count).tolist() == codes


@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_lie_as_numpy_packs_them_lowest_first(bits):
    codes = np.random.default_rng(0).integers(0, 2**bits, 50, dtype=np.uint8)
    stream = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits]
    assert pack(torch.from_numpy(codes), bits).tolist() == np.packbits(stream, bitorder="little").tolist()
