"""Floats of 8 bits: our rounding is torch's on every number and halfway between; their error beside int8's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.quantization.formats import FORMATS, quantize, quantize_fp8, round_float

BOTH = pytest.mark.parametrize("format", FORMATS)


def numbers(format: str) -> torch.Tensor:
    """All finite numbers of the format, ascending, float64."""
    every = torch.arange(256, dtype=torch.uint8).view(FORMATS[format].kind).double()
    return every[every.isfinite()].unique()


@BOTH
def test_numbers_and_what_lies_halfway_between_are_rounded_as_torch_rounds_them(format):
    exact = numbers(format)
    halfway = (exact[1:] + exact[:-1]) / 2
    x = torch.cat([exact, halfway, halfway * (1 + 1e-6), halfway * (1 - 1e-6)]).float()
    assert torch.equal(round_float(x, format), x.to(FORMATS[format].kind).float())
    assert torch.equal(round_float(exact, format), exact)


@given(x=st.floats(-57344, 57344, width=32))
@BOTH
def test_any_number_within_the_range_is_rounded_as_torch_rounds_it(format, x):
    x = torch.tensor([x]).clamp(-FORMATS[format].largest, FORMATS[format].largest)
    assert torch.equal(round_float(x, format), x.to(FORMATS[format].kind).float())


def test_the_largest_and_smallest_numbers_are_the_published_ones():
    for format, largest, smallest in (("e4m3", 448.0, 2.0**-9), ("e5m2", 57344.0, 2.0**-16)):
        assert numbers(format).max() == largest == round_float(torch.tensor(1e9), format)
        assert numbers(format)[numbers(format) > 0].min() == smallest == round_float(torch.tensor(smallest), format)


@BOTH
def test_nothing_too_large_reaches_the_cast(format, monkeypatch):
    """What torch's cast makes of it depends on format and version; this stand-in makes NaN of it, as torch 2.6 does."""
    cast, largest, kind = torch.Tensor.to, FORMATS[format].largest, FORMATS[format].kind

    def strict(x, *to, **more):
        return cast(x.masked_fill(x.abs() > largest, float("nan")) if to == (kind,) else x, *to, **more)

    monkeypatch.setattr(torch.Tensor, "to", strict)
    assert torch.tensor([1e5]).to(kind).float().isnan().all()  # the stand-in works
    assert round_float(torch.tensor([-1e9, 1e9]), format).to(kind).tolist() == [-largest, largest]
    x = 1e5 * torch.rand(10_000, 4, generator=torch.Generator().manual_seed(0))
    assert quantize_fp8(x, format).dequantize().amax(1).allclose(x.amax(1), rtol=1e-6)


@BOTH
@given(seed=st.integers(0, 50), exponent=st.integers(-40, 30), per=st.sampled_from(["tensor", "row", 8]))
def test_relative_errors_stay_within_half_a_step_of_the_mantissa(format, seed, exponent, per):
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    quantized = quantize_fp8(x, format, per)
    f = FORMATS[format]
    scale = quantized.scales.expand(-1, 48 // len(quantized.scales)).reshape(3, 16).double()
    step = torch.maximum(x.double().abs() * 2.0**-f.mantissa, scale * 2.0 ** (f.least - f.mantissa))
    assert ((quantized.dequantize() - x).double().abs() <= 0.5 * step * 1.00001 + 2e-45).all()


@BOTH
def test_zeros_come_back_and_a_byte_is_a_byte(format):
    quantized = quantize_fp8(torch.zeros(4, 32), format)
    assert torch.equal(quantized.dequantize(), torch.zeros(4, 32)) and quantized.bits_per_weight == 8 + 32 / 32
    assert quantized.codes.dtype == FORMATS[format].kind


@BOTH
def test_the_largest_value_of_a_block_becomes_the_largest_number(format):
    codes = quantize_fp8(torch.tensor([[0.5, -2.0], [3e-5, 1e-5]]), format).codes.float()
    assert codes.abs().amax(1).tolist() == [FORMATS[format].largest] * 2


@pytest.mark.parametrize("loud, int8, e4m3, e5m2", [(0.0, 39.3, 31.6, 25.6), (0.001, 17.9, 31.6, 25.6)])
def test_int8_is_better_on_normal_values_and_worse_with_outliers(loud, int8, e4m3, e5m2):
    """In dB, one scale for all; 0.1% of the values 20 times as large."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1_000_000, generator=generator)
    x = torch.where(torch.rand(len(x), generator=generator) < loud, 20 * x, x)
    found = [quantize(x, 8, "tensor"), *(quantize_fp8(x, format, "tensor") for format in FORMATS)]
    decibel = [10 * torch.log10(x.square().mean() / (q.dequantize() - x).square().mean()).item() for q in found]
    assert decibel == pytest.approx([int8, e4m3, e5m2], abs=0.6)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ValueError, match="there is no format 'e3m4'; choose one of e4m3, e5m2"):
        quantize_fp8(torch.ones(2, 2), "e3m4")
    with pytest.raises(ValueError, match="holds 1 NaN or infinite"):
        quantize_fp8(torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="too large for torch.float32"):
        quantize_fp8(torch.tensor([1e300], dtype=torch.float64))


def test_numbers_too_small_for_a_scale_of_their_own_come_back_all_the_same():
    """Within half a step, an eighth. 1e-40 / 57,344 has one bit left in float32 and would cut a fifth off."""
    assert quantize_fp8(torch.tensor([1e-40]), "e5m2").dequantize().item() == pytest.approx(1e-40, rel=1 / 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_values_come_back_in_their_own_dtype_and_are_rounded_once(dtype):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    quantized = quantize_fp8(x)
    assert quantized.dequantize().dtype == dtype
    assert torch.equal(quantized.codes.float(), quantize_fp8(x.double()).codes.float())
