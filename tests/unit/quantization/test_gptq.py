"""GPTQ: worked by hand, its loss is what it says, block sizes change nothing, better than rounding to the nearest."""

import sys
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.rounded import WINDOWS, decoder, with_weights
from torch import Tensor

from lessons_lib.quantization.calibration import MATRICES, watch
from lessons_lib.quantization.gptq import gptq, gptq_decoder, hessian, inverse_factor, layer_loss, row_losses, sweep
from lessons_lib.quantization.integers import KINDS, quantize


def correlated(seed: int, rows: int = 12, columns: int = 48, count: int = 200) -> tuple[Tensor, Tensor]:
    """A weight (N, K) and inputs (n, K) whose columns go together, float64."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(count, columns, generator=generator, dtype=torch.float64) @ mix
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64), x


def to_whole_numbers(w: Tensor, j: int) -> Tensor:
    return w[:, j].round()


@pytest.mark.parametrize("h, w, best, nearest", [(0.5, [0.4, 0.4], 0.28, 0.48), (1.8, [0.4, 0.45], 0.133, 1.373)])
def test_the_second_of_two_columns_makes_up_for_the_first(h, w, best, nearest):
    diagonal = 1.0 if h == 0.5 else 2.0
    w, h = torch.tensor([w]).double(), torch.tensor([[diagonal, h], [h, diagonal]]).double()
    rounded = sweep(w, inverse_factor(h, 0.0), 1, to_whole_numbers)
    assert rounded.tolist() == [[0.0, 1.0]] and layer_loss(w, rounded, h) == pytest.approx(best, abs=1e-6)
    assert layer_loss(w, w.round(), h) == pytest.approx(nearest, abs=1e-6)


def test_the_factor_is_that_of_the_damped_inverse():
    _, x = correlated(0)
    h = hessian(x)
    upper = inverse_factor(h, 0.01)
    damped = h + 0.01 * h.diagonal().mean() * torch.eye(len(h)).double()
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper @ damped, torch.eye(len(h)).double(), atol=1e-9, rtol=0)


def test_the_hessian_gives_twice_the_mean_square_change_of_the_outputs():
    w, x = correlated(0)
    changed = w + 0.1
    loss = F.linear(x, changed - w).square().sum(1).mean()
    assert layer_loss(w, changed, hessian(x)) == pytest.approx(2 * loss.item())
    torch.testing.assert_close(hessian(x.view(10, 20, -1)), hessian(x))
    halves = w.bfloat16(), changed.bfloat16()  # whose difference bfloat16 could not hold
    assert layer_loss(*halves, hessian(x)) == layer_loss(*(half.double() for half in halves), hessian(x))


@pytest.mark.parametrize("options", [
    dict(), dict(bits=3), dict(bits=2, kind="affine"), dict(per=16), dict(per=16, act_order=True),
    dict(per=8, kind="zero_point"), dict(act_order=True, kind="affine"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_on_correlated_inputs_it_loses_less_than_rounding_to_the_nearest(seed, options):
    w, x = correlated(seed)
    nearest = quantize(w, options.get("bits", 4), options.get("per", "row"), options.get("kind", "absmax"))
    ours = gptq(w, hessian(x), **options)
    assert ours.nbytes == nearest.nbytes
    assert layer_loss(w, ours.dequantize(), hessian(x)) < 0.8 * layer_loss(w, nearest.dequantize(), hessian(x))


@given(seed=st.integers(0, 50), bits=st.integers(2, 8), kind=st.sampled_from(KINDS), per=st.sampled_from(["row", 8]),
       act_order=st.booleans())  # fmt: skip
def test_inputs_that_do_not_go_together_leave_rounding_to_the_nearest(seed, bits, kind, per, act_order):
    w, x = correlated(seed, rows=3, columns=16)
    ours = gptq(w, hessian(x).diagonal().diag(), bits, per, kind, act_order=act_order)
    nearest = quantize(w, bits, per, kind)
    assert torch.equal(ours.codes, nearest.codes) and torch.equal(ours.grid.scales, nearest.grid.scales)
    assert torch.equal(ours.dequantize(), nearest.dequantize())


@given(seed=st.integers(0, 10**6), bits=st.integers(2, 4), kind=st.sampled_from(KINDS), per=st.sampled_from(["row", 4]),
       act_order=st.booleans(), count=st.sampled_from([3, 200]))  # fmt: skip
def test_no_row_loses_more_than_rounded_to_the_nearest(seed, bits, kind, per, act_order, count):
    w, x = correlated(seed, rows=6, columns=8, count=count)
    h, nearest = hessian(x), quantize(w, bits, per, kind)
    ours = gptq(w, h, bits, per, kind, act_order=act_order)
    losses = row_losses(w, ours.dequantize(), h), row_losses(w, nearest.dequantize(), h)
    assert (losses[0] <= losses[1]).all()
    assert ours.nbytes == nearest.nbytes


def test_a_row_on_which_it_is_worse_is_rounded_to_the_nearest_and_others_are_not():
    w = torch.tensor([[0.8, 0.7, 0.1, 7.0], [0.4, 0.45, 0.1, 7.0]]).double()  # 7 of 7 levels: steps of 1
    h = torch.eye(4).double()
    h[:3, :3] = torch.tensor([[1.0, 0.6, -0.3], [0.6, 1.0, 0.5], [-0.3, 0.5, 1.0]])
    h.diagonal().div_(1.01)  # what damping adds again
    rounded = sweep(w, inverse_factor(h), 4, to_whole_numbers)
    assert (row_losses(w, rounded, h) > row_losses(w, w.round(), h)).tolist() == [True, False]
    found = gptq(w, h).dequantize()
    assert torch.equal(found[0], w[0].round()) and torch.equal(found[1], rounded[1])
    assert not torch.equal(rounded[1], w[1].round())


@pytest.mark.parametrize("options", [dict(), dict(per=16), dict(per=16, act_order=True, kind="affine")], ids=str)
def test_the_size_of_the_blocks_changes_nothing(options, monkeypatch):
    w, x = correlated(2)
    codes = []
    for block in (1, 7, 20, 128):
        monkeypatch.setattr(sys.modules[gptq.__module__], "BLOCK", block)
        codes.append(gptq(w, hessian(x), **options).codes)
    assert all(torch.equal(other, codes[0]) for other in codes[1:])


def test_without_act_order_a_groups_scale_comes_from_the_columns_as_corrected():
    w, x = correlated(3)
    current, original = gptq(w, hessian(x), per=16).grid, quantize(w, 4, 16).grid
    scales, others = current.scales.view(12, 3), original.scales.view(12, 3)
    assert torch.equal(scales[:, 0], others[:, 0]) and (scales[:, 1:] != others[:, 1:]).any(0).all()
    static = gptq(w, hessian(x), per=16, act_order=True).grid
    assert torch.equal(static.scales, original.scales)


def test_act_order_rounds_the_loudest_inputs_first_and_puts_all_back():
    w, x = correlated(4)
    x[:, 30] *= 3
    h = hessian(x)
    ours = gptq(w, h, bits=3, act_order=True).dequantize()
    nearest = quantize(w, 3).dequantize()
    assert torch.equal(ours[:, 30], nearest[:, 30])  # nothing was corrected before it
    assert not torch.equal(gptq(w, h, bits=3).dequantize()[:, 30], nearest[:, 30])


def test_columns_that_were_always_zero_become_zero_and_disturb_nothing():
    w, x = correlated(6)  # no row of it is rounded to the nearest instead
    x[:, [3, 20]] = 0
    restored = gptq(w, hessian(x)).dequantize()
    assert (restored[:, [3, 20]] == 0).all()
    others = [column for column in range(48) if column not in (3, 20)]
    without = gptq(w[:, others], hessian(x[:, others])).dequantize()
    assert torch.equal(restored[:, others], without)
    all_zero = hessian(x * 0)
    assert torch.equal(gptq(w, all_zero).dequantize(), w * 0) and (all_zero == 0).all()


def test_fewer_inputs_than_columns_are_enough():
    w, x = correlated(6, count=5)
    assert gptq(w, hessian(x)).dequantize().isfinite().all()


def test_shape_dtype_and_the_weight_itself_are_kept():
    w, x = correlated(7)
    w = w.bfloat16()
    before = w.clone()
    restored = gptq(w, hessian(x).float(), per=16).dequantize()
    assert restored.dtype == torch.bfloat16 and restored.shape == w.shape and torch.equal(w, before)


@pytest.mark.parametrize("change, sentence", [
    (dict(weight=torch.full((2, 8), float("nan"))), "holds 16 NaN or infinite values"),
    (dict(hessian=torch.eye(4)), r"a weight \(N, K\) needs a Hessian \(K, K\), not \(2, 8\) and \(4, 4\)"),
    (dict(per="tensor"), 'GPTQ rounds column by column with a scale per "row" or group'),
])  # fmt: skip
def test_what_does_not_fit_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        gptq(**dict(weight=torch.ones(2, 8), hessian=torch.eye(8)) | change)
    with pytest.raises(ValueError, match="the calibration inputs holds 1 NaN"):
        hessian(torch.tensor([[1.0, float("nan")]]))


@torch.no_grad()
def test_gptq_serves_each_layer_better_than_rounding_to_the_nearest():
    """On what the layer reads after layers that are rounded already."""
    whole = decoder()
    found = gptq_decoder(whole, WINDOWS, "int3 g16")
    assert set(found) == {(i, name) for i in (0, 1) for name in MATRICES}
    before = with_weights(whole, lambda place, w: found[place].dequantize() if place[0] == 0 else w)
    seen = {}
    watch(before, WINDOWS, lambda place, x: seen.setdefault(place, []).append(x))
    for name in MATRICES:
        weight, h = getattr(whole.layers[1], name).weight, hessian(torch.cat(seen[1, name]))
        nearest = quantize(weight, 3, 16, "affine").dequantize()
        assert layer_loss(weight, found[1, name].dequantize(), h) < layer_loss(weight, nearest, h)


@torch.no_grad()
def test_gptq_looks_at_inputs_after_rounded_layers(monkeypatch):
    """The second layer's Hessians are of states that the rounded first layer gave."""
    given = []
    monkeypatch.setattr(
        import_module("lessons_lib.quantization.gptq"), "hessian", lambda x: given.append(x) or hessian(x)
    )
    whole = decoder()
    found = gptq_decoder(whole, WINDOWS[:1], "int2 g16")
    rounded = with_weights(whole, lambda place, w: found[place].dequantize() if place[0] == 0 else w)
    seen = []
    watch(rounded, WINDOWS[:1], lambda place, x: seen.append(x) if place[0] == 1 else None)
    torch.testing.assert_close(given[4], seen[0], rtol=0, atol=1e-9)
    exact = []
    watch(whole, WINDOWS[:1], lambda place, x: exact.append(x) if place[0] == 1 else None)
    assert (given[4] - exact[0]).abs().max() > 1e-3


@torch.no_grad()
def test_gptq_weighs_windows_of_unequal_length_by_their_tokens(monkeypatch):
    """The Hessian of a matrix is that of all its inputs at once, not the mean of the windows'."""
    given, windows = [], [WINDOWS[0][:5], WINDOWS[1]]
    monkeypatch.setattr(
        import_module("lessons_lib.quantization.gptq"), "gptq", lambda w, h, **how: given.append(h) or gptq(w, h, **how)
    )
    whole, seen = decoder(), {}
    gptq_decoder(whole, windows, "int3 g16")
    watch(whole, windows, lambda place, x: seen.setdefault(place, []).append(x))
    inputs = [torch.cat(seen[0, name]) for name in MATRICES]
    for h, x in zip(given[: len(inputs)], inputs, strict=True):
        torch.testing.assert_close(h, hessian(x))
