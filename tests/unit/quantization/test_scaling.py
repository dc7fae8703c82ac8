"""Scaled channels compute what they did; AWQ is never worse on its inputs, SmoothQuant evens out the outliers."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lessons_lib.quantization.awq import POINTS, awq_scales
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import multiply_rounded, round_rows
from lessons_lib.quantization.smoothquant import smooth_scales


def loud(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (64, 32) with two loud channels and a weight (16, 32), float64."""
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(rows, 32, generator=generator, dtype=torch.float64) for rows in (64, 16))
    x[:, [4, 19]] *= 40
    return x, w


def in_3_bits(w: Tensor):
    return quantize(w, 3, 16)


@given(seed=st.integers(0, 50), alpha=st.floats(0, 1))
def test_scaling_both_sides_leaves_the_matmul_as_it_was(seed, alpha):
    x, w = loud(seed)
    s = smooth_scales(x.abs().amax(0), w.abs().amax(0), alpha)
    torch.testing.assert_close(F.linear(x / s, w * s), F.linear(x, w), atol=1e-9, rtol=1e-9)
    s = awq_scales(x, w, in_3_bits, points=3)
    torch.testing.assert_close(F.linear(x / s, w * s), F.linear(x, w), atol=1e-9, rtol=1e-9)


def test_smoothing_worked_by_hand():
    x, w = torch.tensor([16.0, 1.0, 0.0, 4.0]), torch.tensor([4.0, 1.0, 2.0, 0.0])
    assert smooth_scales(x, w).tolist() == [2.0, 1.0, 1.0, 1.0]
    assert smooth_scales(x, w, 1.0).tolist() == [16.0, 1.0, 1.0, 1.0]
    assert smooth_scales(x, w, 0.0).tolist() == [0.25, 1.0, 1.0, 1.0]


def test_half_and_half_gives_both_sides_the_same_maxima():
    x, w = loud()
    s = smooth_scales(x.abs().amax(0), w.abs().amax(0))
    torch.testing.assert_close((x / s).abs().amax(0), (w * s).abs().amax(0))


@pytest.mark.parametrize("seed", range(5))
def test_smoothed_integers_lose_less_where_channels_are_loud(seed):
    x, w = loud(seed)
    s = smooth_scales(x.abs().amax(0), w.abs().amax(0))

    def error(x: Tensor, w: Tensor) -> float:
        levels, scales = round_rows(w)
        return (multiply_rounded(x, levels, scales[:, 0]) - F.linear(x, w)).square().mean().item()

    assert error(x / s, w * s) < error(x, w) / 2


@pytest.mark.parametrize("seed", range(5))
def test_awq_is_never_worse_than_rounding_to_the_nearest_and_better_where_channels_are_loud(seed):
    x, w = loud(seed)
    s, loudness = awq_scales(x, w, in_3_bits), x.abs().mean(0)
    powers = [loudness ** (i / POINTS) for i in range(POINTS)]
    errors = [(F.linear(x / p, in_3_bits(w * p).dequantize()) - F.linear(x, w)).square().mean().item() for p in powers]
    best = powers[errors.index(min(errors))]
    torch.testing.assert_close(s / s[0], best / best[0])
    assert min(errors) < 0.5 * errors[0]
    assert s[[4, 19]].min() > s[[0, 1]].max()


def test_channels_that_are_always_zero_do_no_harm():
    x, w = loud()
    x[:, 7] = 0
    assert awq_scales(x, w, in_3_bits).isfinite().all()


@pytest.mark.parametrize("x, w, alpha, sentence", [
    (torch.ones(4), torch.ones(4), 1.5, "alpha lies between 0 and 1, not at 1.5"),
    (torch.ones(4), torch.ones(3), 0.5, r"pass x.abs\(\).amax\(0\)"),
])  # fmt: skip
def test_what_cannot_be_smoothed_is_refused(x, w, alpha, sentence):
    with pytest.raises(ValueError, match=sentence):
        smooth_scales(x, w, alpha)


def test_what_awq_cannot_search_is_refused():
    with pytest.raises(ValueError, match=r"inputs \(n, K\), a weight \(N, K\) and points >= 1 are needed"):
        awq_scales(torch.ones(2, 3), torch.ones(2, 4), in_3_bits)
