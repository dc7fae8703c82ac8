"""SmoothQuant and AWQ against torchao's prototypes, on one layer and the same calibration inputs.

On a CPU torchao smooths its 8 bits and scales its prototype of int4 by AWQ; its other 4-bit formats take no scales
(`IntxWeightOnlyConfig`), or ask for a package or kernel that is not built for it (`Int4WeightOnlyConfig`, and the
prototype with activations in 8 bits). The search of AWQ alone runs for `IntxWeightOnlyConfig`, too.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.toys import linear_of
from torch import Tensor, nn

from lessons_lib.quantization.awq import awq_scales
from lessons_lib.quantization.formats import relative_error
from lessons_lib.quantization.integers import Integers, quantize
from lessons_lib.quantization.linear import DequantizedLinear, ScaledLinear, W8A8Linear
from lessons_lib.quantization.smoothquant import smooth_scales

N, K, LOUD = 64, 128, [7, 40]


@pytest.fixture
def smoothquant(torchao):
    return pytest.importorskip(
        "torchao.prototype.smoothquant", reason="this torchao has no SmoothQuant"
    ).SmoothQuantConfig


@pytest.fixture
def awq(torchao):
    return pytest.importorskip("torchao.prototype.awq", reason="this torchao has no AWQ").AWQConfig


@pytest.fixture
def int4(torchao):
    """torchao's format of 4 bits for CPUs."""
    formats = pytest.importorskip("torchao.prototype.quantization.int4", reason="this torchao has no int4 for CPUs")
    return formats.PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False)


def layer(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (48, K) with two loud channels, and a weight (N, K)."""
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(rows, K, generator=generator) for rows in (48, N))
    x = x * torch.linspace(0.2, 2, K)
    x[:, LOUD] *= 30
    return x, w


def prepared(torchao, config: Callable, x: Tensor, w: Tensor) -> nn.Sequential:
    """A linear layer with w as torchao watches it, which has seen x in three parts. config: of a step."""
    network = linear_of(w)
    torchao.quantize_(network, config("prepare"))
    for part in x.split(16):
        network(part)
    return network


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_scales_of_smoothquant_are_torchaos(torchao, smoothquant, alpha, running):
    """running: their way for much calibration, which keeps the maxima alone."""
    x, w = layer()
    base = torchao.Int8WeightOnlyConfig(set_inductor_config=False)
    watched = prepared(torchao, partial(smoothquant, base, alpha=alpha, use_running_absmax=running), x, w)
    theirs, *_ = watched[0].obs.calculate_qparams()
    largest = x.abs().amax(0), w.abs().amax(0)
    torch.testing.assert_close(smooth_scales(*largest, alpha), theirs, rtol=1e-4, atol=0)  # they add 1e-7 to maxima
    for wrong in (smooth_scales(*largest, abs(alpha - 0.1)), smooth_scales(*largest[::-1], alpha)):
        assert not torch.isclose(wrong, theirs, rtol=0.01).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_smoothed_layer_of_torchao_multiplies_what_ours_does(torchao, smoothquant, seed):
    """Inputs over s and weights times s; those are within a level of ours, since theirs are 127.5 a side."""
    x, w = layer(seed)
    config = partial(smoothquant, torchao.Int8WeightOnlyConfig(set_inductor_config=False))
    network, s = prepared(torchao, config, x, w), smooth_scales(x.abs().amax(0), w.abs().amax(0))
    torchao.quantize_(network, config("convert"))
    ours, theirs = quantize(w * s, 8, scale_dtype=torch.float32), network[0].weight.dequantize()
    assert ((theirs - ours.dequantize()).abs() <= 1.01 * ours.grid.scales).all()
    torch.testing.assert_close(network(x), (x / s) @ theirs.T, rtol=1e-4, atol=1e-3)
    assert relative_error(network(x), ScaledLinear(DequantizedLinear(ours), s)(x)) < 0.01
    assert relative_error(network(x), ScaledLinear(DequantizedLinear(ours), 1 / s)(x)) > 1


@pytest.mark.parametrize("seed", range(3))
def test_smoothing_buys_with_rounded_activations_what_it_buys_with_torchao(torchao, smoothquant, seed):
    x, w = layer(seed)
    config = partial(smoothquant, torchao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
    network, s, right = prepared(torchao, config, x, w), smooth_scales(x.abs().amax(0), w.abs().amax(0)), x @ w.T
    torchao.quantize_(network, config("convert"))
    ours, theirs = (
        relative_error(right, ScaledLinear(W8A8Linear(quantize(w * s, 8)), s)(x)),
        relative_error(right, network(x)),
    )
    assert ours == pytest.approx(theirs, rel=0.4)
    assert 2 * max(ours, theirs) < relative_error(right, W8A8Linear(quantize(w, 8))(x))


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_awqs_search_chooses_the_scales_of_torchaos_for_the_same_rounding(torchao, awq, bits, seed):
    """Their rounding given to our search: the same scales. By our rounding, our scales lose no more than theirs."""
    x, w = layer(seed)
    base = torchao.IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), granularity=torchao.PerGroup(32))

    def by_torchao(weight: Tensor) -> Tensor:
        linear = linear_of(weight)
        torchao.quantize_(linear, base)
        return linear[0].weight

    def rounded(weight: Tensor) -> Integers:
        return quantize(weight, bits, 32)

    def loss(s: Tensor) -> float:
        return (ScaledLinear(DequantizedLinear(rounded(w * s)), s)(x) - x @ w.T).square().mean().item()

    theirs = prepared(torchao, partial(awq, base), x, w)[0].act_obs.calculate_qparams()
    torch.testing.assert_close(awq_scales(x, w, by_torchao), theirs, rtol=1e-5, atol=0)
    assert loss(awq_scales(x, w, rounded)) <= 1.0001 * loss(theirs) < loss(torch.ones(K)) / 2


@pytest.mark.parametrize("seed", range(3))
def test_awq_in_4_bits_is_torchaos(torchao, awq, int4, seed):
    """Its int4 for CPUs has a scale and a minimum for each group, as ours: scales and product agree."""

    def rounded(weight: Tensor) -> Integers:
        return quantize(weight, 4, 32, "affine")

    x, w = layer(seed)
    config, s, right = partial(awq, int4), awq_scales(x, w, rounded), x @ w.T
    network = prepared(torchao, config, x, w)
    torch.testing.assert_close(s, network[0].act_obs.calculate_qparams(), rtol=1e-5, atol=0)
    torchao.quantize_(network, config("convert"))
    ours = ScaledLinear(DequantizedLinear(rounded(w * s)), s)(x)
    off = {"theirs": (ours - network(x)).abs().median(), "right": (ours - right).abs().median()}
    assert off["theirs"] < 0.1 * off["right"]  # a median, as a code that falls the other way is seen in one output
    assert 1.5 * relative_error(right, network(x)) < relative_error(right, DequantizedLinear(rounded(w))(x))
