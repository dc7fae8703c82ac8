"""Formats by name give what their functions give; their bits and errors; a name that is none is refused."""

import math

import pytest
import torch

from lessons_lib.quantization.floats import quantize_fp8, quantize_nf4
from lessons_lib.quantization.formats import bits_of, decibels, draws, integers, relative_error, round_trip, rounding
from lessons_lib.quantization.integers import quantize

WEIGHT = torch.randn(16, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name, right", [
    ("int8", quantize(WEIGHT, 8)),
    ("int8 tensor", quantize(WEIGHT, 8, "tensor")),
    ("int8 zero_point", quantize(WEIGHT, 8, "row", "zero_point")),
    ("int4", quantize(WEIGHT, 4, "row", "affine")),
    ("int4 g32", quantize(WEIGHT, 4, 32, "affine")),
    ("int3 absmax g64", quantize(WEIGHT, 3, 64, "absmax")),
    ("int2 g32 absmax", quantize(WEIGHT, 2, 32, "absmax")),
    ("nf4", quantize_nf4(WEIGHT, 64, False)),
    ("nf4 double g128", quantize_nf4(WEIGHT, 128, True)),
    ("fp8", quantize_fp8(WEIGHT, "e4m3", "row")),
    ("fp8 e5m2 tensor", quantize_fp8(WEIGHT, "e5m2", "tensor")),
])  # fmt: skip
def test_a_name_is_its_format(name, right):
    found = rounding(name)(WEIGHT)
    assert torch.equal(found.dequantize(), right.dequantize()) and found.nbytes == right.nbytes


@pytest.mark.parametrize("name, sentence", [
    ("int4g32", "'int4g32' is no format; write it like 'int8', 'int4 g32'"),
    ("nf4 row", "is no format"),
    ("int4 g32 g64", "names 32 and 64; choose one of them"),
])  # fmt: skip
def test_another_name_is_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        rounding(name)


def test_formats_of_integers_can_be_told_from_others():
    assert integers("int3 g64") == {"bits": 3, "per": 64, "kind": "affine"}
    assert integers("nf4") is None and integers("fp8") is None


@pytest.mark.parametrize("name, columns, bits", [
    ("fp32", 576, 32), ("bf16", 576, 16),
    ("int8", 576, 8 + 16 / 576), ("int4 g32", 576, 5), ("int4 g32 absmax", 1536, 4.5), ("int3 g64", 576, 3.5),
    ("int8 g32 affine", 576, 9), ("int4 g64", 576, 4.5), ("int4 g128", 4096, 4.25), ("int2 g32", 576, 3),
    ("fp8", 576, 8 + 32 / 576), ("nf4", 576, 4.5), ("nf4 double", 576, 4 + 8 / 64 + 32 / (64 * 256)),
])  # fmt: skip
def test_bits_are_the_codes_and_a_share_of_scale_and_minimum(name, columns, bits):
    assert bits_of(name, columns) == pytest.approx(bits, abs=5e-4)


def test_errors_by_hand():
    x, rounded = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert relative_error(x, rounded) == pytest.approx(0.1)
    assert decibels(x, rounded) == pytest.approx(20) and decibels(x, x) == math.inf


def test_tails_get_heavier_and_float_formats_do_not_care():
    distributions = draws(40_000)
    heights = [(x.abs().max() / x.square().mean().sqrt()).item() for x in distributions.values()]
    assert heights[:3] == sorted(heights[:3]) and heights[0] < 2 and min(heights[3:]) > 2 * heights[2]
    found = {
        name: [decibels(x, round_trip(x[None], name)[0]) for x in distributions.values()] for name in ("int8", "fp8")
    }
    assert found["int8"][0] > found["fp8"][0] + 10 and found["int8"][-1] < found["fp8"][-1] - 5
    assert max(found["fp8"]) - min(found["fp8"]) < 1.5


def test_the_same_seed_draws_the_same():
    one, other = draws(100, 3), draws(100, 3)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["normal"], draws(100, 4)["normal"])
