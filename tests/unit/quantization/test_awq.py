"""AWQ is never worse on its inputs than rounding to the nearest, and scaling for it changes no logit."""

import pytest
import torch
import torch.nn.functional as F
from support.rounded import WINDOWS, decoder, in_3_bits, logits, loud, loud_channels, off

from lessons_lib.quantization.awq import POINTS, awq, awq_scales
from lessons_lib.quantization.calibration import inputs_of
from lessons_lib.quantization.formats import rounding
from lessons_lib.quantization.model import quantize_model


@pytest.mark.parametrize("seed", range(5))
def test_awq_is_never_worse_than_rounding_to_the_nearest_and_better_where_channels_are_loud(seed):
    x, w = loud_channels(seed)
    s, loudness = awq_scales(x, w, in_3_bits), x.abs().mean(0)
    powers = [loudness ** (i / POINTS) for i in range(POINTS)]
    errors = [(F.linear(x / p, in_3_bits(w * p).dequantize()) - F.linear(x, w)).square().mean().item() for p in powers]
    best = powers[errors.index(min(errors))]
    torch.testing.assert_close(s / s[0], best / best[0])
    assert min(errors) < 0.5 * errors[0]
    assert s[[4, 19]].min() > s[[0, 1]].max()


@pytest.mark.parametrize("loudness", [0, 1e-20])
def test_channels_that_are_zero_or_nearly_zero_do_no_harm(loudness):
    x, w = loud_channels()
    x[:, 7] *= loudness
    scales = awq_scales(x, w, in_3_bits)
    assert scales.isfinite().all() and scales.max() < 1e4


def test_scaling_for_awq_changes_no_logit_and_lowers_the_error_of_3_bits():
    harsh = loud(decoder())
    inputs = inputs_of(harsh, WINDOWS)
    found = awq(harsh, inputs, rounding("int3 g16"))
    torch.testing.assert_close(logits(found), logits(harsh), rtol=0, atol=1e-9)
    right = logits(harsh)
    assert off(quantize_model(harsh, "awq int3 g16", windows=WINDOWS, head=None), right) < off(
        quantize_model(harsh, "int3 g16", head=None), right
    )
