"""Formats by name give what their functions give, and a name that is none is refused."""

import pytest
import torch

from lessons_lib.quantization.formats import integers, quantize, quantize_fp8, quantize_nf4, rounding

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
    ("fp4", "is no format"),
    ("nf4 row", "is no format"),
    ("int4 double", "is no format"),
    ("", "is no format"),
    ("int4 g32 g64", "names 32 and 64; choose one of them"),
    ("int9", "9 bits are not supported"),
])  # fmt: skip
def test_another_name_is_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        rounding(name)


def test_a_group_that_does_not_fit_is_named_when_it_is_used():
    with pytest.raises(ValueError, match="groups of 96 do not divide rows of 128 values; 128, 64, 32"):
        rounding("int4 g96")(WEIGHT)


def test_formats_of_integers_can_be_told_from_others():
    assert integers("int3 g64") == {"bits": 3, "per": 64, "kind": "affine"}
    assert integers("nf4") is None and integers("fp8") is None


def test_a_name_that_says_two_things_is_quoted():
    with pytest.raises(ValueError, match="'fp8 e4m3 e5m2' names e4m3 and e5m2; choose one of them"):
        rounding("fp8 e4m3 e5m2")
