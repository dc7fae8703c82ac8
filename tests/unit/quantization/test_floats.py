"""FP8 is off by half a step of its mantissa at most; NF4 has the published levels and chooses the nearest."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.quantization.floats import (
    FORMATS,
    codebook,
    double_scales,
    nearest_level,
    quantize_fp8,
    quantize_nf4,
)
from lessons_lib.quantization.integers import quantize, unpack

BOTH = pytest.mark.parametrize("format", FORMATS)


@pytest.mark.parametrize("format, largest", [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_the_largest_value_of_a_block_becomes_the_largest_number(format, largest):
    """Whatever the division by the scale rounds to: torch's cast makes infinity or NaN of anything larger."""
    x = 1e5 * torch.rand(10_000, 4, generator=torch.Generator().manual_seed(0))
    quantized = quantize_fp8(x, format)
    assert (quantized.codes.float().amax(1) == largest).all()
    assert quantized.dequantize().amax(1).allclose(x.amax(1), rtol=1e-6)


@BOTH
@given(seed=st.integers(0, 50), exponent=st.integers(-40, 30), per=st.sampled_from(["tensor", "row", 8]))
def test_relative_errors_stay_within_half_a_step_of_the_mantissa(format, seed, exponent, per):
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    quantized = quantize_fp8(x, format, per)
    mantissa, least = {"e4m3": (3, -6), "e5m2": (2, -14)}[format]  # bits, and exponent of the smallest normal number
    scale = quantized.scales.expand(-1, 48 // len(quantized.scales)).reshape(3, 16).double()
    step = torch.maximum(x.double().abs() * 2.0**-mantissa, scale * 2.0 ** (least - mantissa))
    assert ((quantized.dequantize() - x).double().abs() <= 0.5 * step * 1.00001 + 2e-45).all()


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
def test_values_come_back_in_their_own_dtype_and_find_the_codes_of_float64(dtype):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    quantized = quantize_fp8(x)
    assert quantized.dequantize().dtype == dtype
    assert torch.equal(quantized.codes.float(), quantize_fp8(x.double()).codes.float())


# QLoRA, appendix E
PUBLISHED = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_formula_gives_the_published_levels():
    assert codebook().tolist() == pytest.approx(PUBLISHED, abs=1e-6)


@given(ratio=st.floats(-1, 1))
def test_the_level_chosen_is_the_nearest(ratio):
    chosen = codebook()[nearest_level(torch.tensor([ratio], dtype=torch.float64))]
    assert (chosen - ratio).abs().item() == (codebook() - ratio).abs().min().item()


@given(seed=st.integers(0, 50), exponent=st.integers(-30, 30), block=st.sampled_from([4, 16]), double=st.booleans())
def test_every_value_comes_back_within_half_the_widest_gap(seed, exponent, block, double):
    x = normal(3, 32, seed=seed) * 10.0**exponent
    error = (quantize_nf4(x, block, double).dequantize() - x).abs().view(-1, block).amax(1)
    largest = x.view(-1, block).abs().amax(1)
    lost = (largest - largest.mean()).abs().max() / 254 if double else 0  # by rounding the scales: half a step
    assert (error <= 0.5 * codebook().diff().max() * (largest + lost) * 1.00001 + lost).all()


@pytest.mark.parametrize("double", [False, True])
def test_zeros_and_the_loudest_values_come_back(double):
    x = normal(2, 64)
    x[0], x[1, ::2] = 0, 0
    restored = quantize_nf4(x, 64, double).dequantize()
    assert (restored[x == 0] == 0).all()
    loudest = x[1].abs().argmax()
    assert restored[1, loudest].item() == pytest.approx(x[1, loudest].item(), rel=1e-6 if not double else 0.01)


def test_a_block_worked_by_hand():
    quantized = quantize_nf4(torch.tensor([[2.0, -2.0, 0.0, 1.0]]), 4, double=False)
    assert unpack(quantized.codes, 4, 4).tolist() == [15, 0, 7, 12]  # 0.5 lies nearer to 0.4407 than to 0.5626
    assert quantized.dequantize()[0].tolist() == pytest.approx([2.0, -2.0, 0.0, 2 * PUBLISHED[12]])


def test_levels_are_chosen_for_the_scale_that_is_kept():
    x = normal(32, 64) * torch.logspace(-2, 1, 32)[:, None]
    quantized = quantize_nf4(x)
    kept = quantized.scales.dequantize()[:, None] * codebook().float()
    best = (kept[:, None] - x[:, :, None]).abs().amin(-1)
    torch.testing.assert_close((quantized.dequantize() - x).abs(), best)


def test_bits_per_weight_are_the_published_ones():
    x = normal(64, 256)  # 256 blocks of 64
    assert quantize_nf4(x, double=False).bits_per_weight == 4.5
    mean = 32 / x.numel()  # one number a tensor, which the paper leaves out
    assert quantize_nf4(x).bits_per_weight - mean == 4 + 8 / 64 + 32 / (64 * 256) == pytest.approx(4.127, abs=5e-4)


def test_scales_are_off_by_half_a_step_of_what_is_left_beside_their_mean():
    scales = normal(300).abs()
    double = double_scales(scales)
    assert double.mean == scales.mean() and double.rest.shape == (2, 256)
    error = (double.dequantize() - scales).abs()
    assert 0 < error.max() <= (scales - scales.mean()).abs().max() / 254 * 1.0001


@pytest.mark.parametrize("block, nf4, minimum, absmax", [(64, 20.7, 21.0, 19.4), (128, 20.4, 20.0, 18.6)])
def test_it_beats_integers_of_4_bits_on_normal_values_once_blocks_are_large(block, nf4, minimum, absmax):
    """In dB. Blocks of 64 are small enough for integers with a minimum to be better."""
    x = normal(512, 1024)
    kept = {"scale_dtype": torch.float32}
    integers = [quantize(x, 4, block, kind, **kept).dequantize() for kind in ("affine", "absmax")]
    found = [quantize_nf4(x, block, double=False).dequantize(), *integers]
    decibel = [10 * torch.log10(x.square().mean() / (y - x).square().mean()).item() for y in found]
    assert decibel == pytest.approx([nf4, minimum, absmax], abs=0.25)


def test_numbers_of_16_bits_find_the_levels_that_they_would_find_with_more():
    x = normal(8, 64).bfloat16()
    assert torch.equal(quantize_nf4(x, double=False).codes, quantize_nf4(x.float(), double=False).codes)
