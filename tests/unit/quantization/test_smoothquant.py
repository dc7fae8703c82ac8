"""SmoothQuant: scaled channels compute what they did, and the outliers are evened out."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.rounded import WINDOWS, decoder, in_3_bits, logits, loud, loud_channels
from torch import Tensor

from lessons_lib.quantization.awq import awq_scales
from lessons_lib.quantization.calibration import inputs_of
from lessons_lib.quantization.linear import multiply_rounded, round_rows
from lessons_lib.quantization.smoothquant import ALPHAS, smooth_scales, smoothed


@given(seed=st.integers(0, 50), alpha=st.floats(0, 1))
def test_scaling_both_sides_leaves_the_matmul_as_it_was(seed, alpha):
    x, w = loud_channels(seed)
    s = smooth_scales(x.abs().amax(0), w.abs().amax(0), alpha)
    torch.testing.assert_close(F.linear(x / s, w * s), F.linear(x, w), atol=1e-9, rtol=1e-9)
    s = awq_scales(x, w, in_3_bits)
    torch.testing.assert_close(F.linear(x / s, w * s), F.linear(x, w), atol=1e-9, rtol=1e-9)


def test_smoothing_worked_by_hand():
    x, w = torch.tensor([16.0, 1.0, 0.0, 4.0]), torch.tensor([4.0, 1.0, 2.0, 0.0])
    assert smooth_scales(x, w).tolist() == [2.0, 1.0, 1.0, 1.0]
    assert smooth_scales(x, w, 1.0).tolist() == [16.0, 1.0, 1.0, 1.0]
    assert smooth_scales(x, w, 0.0).tolist() == [0.25, 1.0, 1.0, 1.0]


def test_a_channel_that_is_nearly_zero_is_not_scaled_out_of_range():
    """Its norm is divided by its s, and must fit into float16."""
    assert smooth_scales(torch.tensor([1e-20, 1.0]), torch.ones(2), 1.0).tolist() == pytest.approx([1e-6, 1.0])


def test_half_and_half_gives_both_sides_the_same_maxima():
    x, w = loud_channels()
    s = smooth_scales(x.abs().amax(0), w.abs().amax(0))
    torch.testing.assert_close((x / s).abs().amax(0), (w * s).abs().amax(0))


@pytest.mark.parametrize("seed", range(5))
def test_smoothed_integers_lose_less_where_channels_are_loud(seed):
    x, w = loud_channels(seed)
    s = smooth_scales(x.abs().amax(0), w.abs().amax(0))

    def error(x: Tensor, w: Tensor) -> float:
        levels, scales = round_rows(w)
        return (multiply_rounded(x, levels, scales[:, 0]) - F.linear(x, w)).square().mean().item()

    assert error(x / s, w * s) < error(x, w) / 2


@pytest.mark.parametrize("x, w, alpha, sentence", [
    (torch.ones(4), torch.ones(4), 1.5, "alpha lies between 0 and 1, not at 1.5"),
    (torch.ones(4), torch.ones(3), 0.5, r"pass x.abs\(\).amax\(0\)"),
])  # fmt: skip
def test_what_cannot_be_smoothed_is_refused(x, w, alpha, sentence):
    with pytest.raises(ValueError, match=sentence):
        smooth_scales(x, w, alpha)


@pytest.mark.parametrize("alphas", [ALPHAS, {"down": 1.0}, {"qkv": 0.2}])
def test_smoothing_changes_no_logit_and_leaves_the_decoder_alone(alphas):
    whole = decoder()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    found = smoothed(whole, inputs_of(whole, WINDOWS), alphas)
    torch.testing.assert_close(logits(found), logits(whole), rtol=0, atol=1e-9)
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    for name in alphas:
        assert not torch.equal(getattr(found.layers[0], name).weight, getattr(whole.layers[0], name).weight)
    assert found.head.weight is whole.head.weight


def test_smoothing_evens_out_what_columns_read():
    harsh = loud(decoder())
    smooth = smoothed(harsh, inputs_of(harsh, WINDOWS), ALPHAS)
    before, after = (inputs_of(of, WINDOWS)[0, "qkv"].largest for of in (harsh, smooth))
    assert after.max() / after.median() < before.max() / before.median() / 5
