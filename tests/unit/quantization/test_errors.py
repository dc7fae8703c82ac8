"""Rounding there and back: the same values as the packed tensors', the errors, and laws with ever heavier tails."""

import math

import pytest
import torch

from lessons_lib.quantization.errors import NAMES, bits_of, decibels, draws, relative_error, round_trip
from lessons_lib.quantization.floats import quantize_fp8
from lessons_lib.quantization.integers import KINDS, quantize
from lessons_lib.quantization.nf4 import quantize_nf4

X = torch.randn(6, 192, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits, per", [(8, "row"), (4, 32), (3, 64), (2, "tensor")])
def test_integers_come_back_as_the_packed_ones_do(kind, bits, per):
    assert torch.equal(round_trip(X, kind, bits, per), quantize(X, bits, per, kind).dequantize())


def test_other_formats_have_a_width_of_their_own():
    assert torch.equal(round_trip(X, "e4m3", 3), quantize_fp8(X, "e4m3").dequantize())
    assert torch.equal(round_trip(X, "nf4", 7, 32), quantize_nf4(X, 32).dequantize())
    assert torch.equal(round_trip(X, "nf4"), quantize_nf4(X, 192).dequantize())


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_the_packed_tensor(name):
    wide = torch.randn(256, 768)
    packed = {"nf4": lambda: quantize_nf4(wide, 64), "e4m3": lambda: quantize_fp8(wide, "e4m3", 64)}
    packed["e5m2"] = lambda: quantize_fp8(wide, "e5m2", 64)
    made = packed.get(name, lambda: quantize(wide, 4, 64, name))()
    assert bits_of(name, 4, 768, 64) == pytest.approx(made.bits_per_weight, abs=1e-3)


def test_a_row_of_its_own_scale_shares_its_bits_among_its_columns():
    assert bits_of("absmax", 8, 576) == 8 + 16 / 576 and bits_of("minimum", 4, 576, 32) == 5


def test_an_unknown_format_and_bad_values_are_refused():
    with pytest.raises(ValueError, match="no format 'fp3'; choose one of absmax"):
        round_trip(X, "fp3")
    with pytest.raises(ValueError, match="NaN"):
        round_trip(torch.tensor([[1.0, math.nan]]))
    with pytest.raises(ValueError, match="groups of 48 do not divide"):
        round_trip(torch.ones(2, 100), "absmax", 4, 48)


def test_errors_by_hand():
    x, rounded = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert relative_error(x, rounded) == pytest.approx(0.1)
    assert decibels(x, rounded) == pytest.approx(20) and decibels(x, x) == math.inf


def test_tails_get_heavier_and_float_formats_do_not_care():
    laws = draws(40_000)
    heights = [(x.abs().max() / x.square().mean().sqrt()).item() for x in laws.values()]
    assert heights[:3] == sorted(heights[:3]) and heights[0] < 2 and min(heights[3:]) > 2 * heights[2]
    found = {name: [decibels(x, round_trip(x[None], name)[0]) for x in laws.values()] for name in ("absmax", "e4m3")}
    assert found["absmax"][0] > found["e4m3"][0] + 10 and found["absmax"][-1] < found["e4m3"][-1] - 5
    assert max(found["e4m3"]) - min(found["e4m3"]) < 1.5


def test_the_same_seed_draws_the_same():
    one, other = draws(100, 3), draws(100, 3)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["normal"], draws(100, 4)["normal"])
