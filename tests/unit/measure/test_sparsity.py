"""Measures of sparsity on rows that can be counted by hand, their controls, and the limits for the real shape."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.sparsity import (
    attention_share,
    highest,
    kept_count,
    mass_sparsity,
    mass_sparsity_of_normal,
    share_below,
    skippable,
    speedup,
    threshold,
    top_mass,
    union,
    without_first,
)

SMOL = CONFIGS["smollm2-135m"]

FIVE = torch.tensor([0.5, 0.3, 0.1, 0.05, 0.05], dtype=torch.float64)

UNIFORM = torch.full((1000,), 1e-3, dtype=torch.float64)


def causal(count):
    return torch.ones(count, count, dtype=torch.bool).tril()


def test_a_uniform_row_is_all_small_but_nothing_of_it_may_go():
    assert share_below(UNIFORM, 1e-2) == 1
    assert kept_count(UNIFORM, 0.99) == 990
    assert mass_sparsity(UNIFORM, 0.01).item() == pytest.approx(0.01)
    assert top_mass(UNIFORM, 0.034).item() == pytest.approx(0.034)


def test_a_fixed_threshold_measures_the_length():
    short, long = torch.full((64,), 1 / 64), torch.full((4096,), 1 / 4096)
    assert (share_below(short, 1e-3), share_below(long, 1e-3)) == (0, 1)
    assert max(mass_sparsity(short, 0.03), mass_sparsity(long, 0.03)) <= 0.03


def test_the_row_by_hand():
    assert kept_count(FIVE, 0.9) == 3
    assert mass_sparsity(FIVE, 0.1).item() == pytest.approx(0.4)
    assert mass_sparsity(FIVE, 0.05).item() == pytest.approx(0.2)
    assert share_below(FIVE, 0.1) == 0.4  # 0.1 itself is not below
    assert top_mass(FIVE, 0.3).item() == pytest.approx(0.8)  # 1.5 of 5 weights are 2


def test_what_the_mask_hides_is_no_sparsity():
    """Uniform causal rows: nothing of them can go. Counting the future as zeros would give about one half."""
    allowed = causal(64)
    weights = allowed / allowed.sum(-1, keepdim=True)
    assert mass_sparsity(weights, 1e-3, allowed).max() == 0
    assert mass_sparsity(weights, 1e-3).mean() > 0.45  # what it looks like without the mask
    assert top_mass(weights, 0.5, allowed)[9].item() == pytest.approx(0.5)


def test_what_stands_outside_the_mask_changes_nothing():
    """Five weights, and three numbers of another request after them: every measure is that of the five."""
    padded = torch.cat([FIVE, torch.tensor([0.7, 0.0, 0.01])])
    allowed = torch.arange(8) < 5
    measures = [
        lambda w, a: mass_sparsity(w, 0.1, a),
        lambda w, a: top_mass(w, 0.4, a),
        lambda w, a: without_first(w, 2, a)[0][:3],
    ]
    for measure in measures:
        assert torch.equal(measure(padded, allowed), measure(FIVE, None))
    assert mass_sparsity(padded, 0.1, allowed).item() == pytest.approx(0.4)


def test_sums_that_fall_short_by_rounding_are_enough():
    sixths = torch.full((6,), 1 / 6, dtype=torch.float64)  # of which the first five sum to less than 5/6
    assert sixths.cumsum(0)[4] < 5 / 6 and kept_count(sixths, 5 / 6) == 5
    assert kept_count(torch.tensor([0.5, 0.3, 0.1999]), 1.0) == 3  # all there are, though they hold less


def test_without_the_sink_the_rest_is_a_row_again():
    rest, allowed = without_first(FIVE, 1)
    assert rest.tolist() == pytest.approx([0.6, 0.2, 0.1, 0.1]) and allowed.tolist() == [True] * 4
    _, allowed = without_first(torch.eye(4)[1], 1, torch.arange(4) < 3)
    assert allowed.tolist() == [True, True, False]


def test_mass_outside_the_mask_is_refused():
    with pytest.raises(ValueError, match="sum to 1 over what is allowed"):
        mass_sparsity(torch.tensor([0.5, 0.5]), 0.1, torch.tensor([True, False]))


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=30), st.floats(0.01, 0.5))
def test_what_is_kept_holds_the_mass_and_one_less_does_not(logits, eps):
    w = torch.tensor(logits, dtype=torch.float64).softmax(-1)
    k = kept_count(w, 1 - eps).item()
    largest = w.sort(descending=True).values
    assert largest[:k].sum() >= 1 - eps - 1e-8 and largest[: k - 1].sum() < 1 - eps + 1e-8
    assert k == len(w) - round(mass_sparsity(w, eps).item() * len(w))
    assert top_mass(w, k / len(w)).item() >= 1 - eps - 1e-8


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_normal_logits_have_the_mass_sparsity_of_the_formula(std):
    logits = std * torch.randn(20, 20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = mass_sparsity(logits.softmax(-1), 0.03).mean().item()
    assert found == pytest.approx(mass_sparsity_of_normal(std, 0.03), abs=0.005)


def test_the_highest_are_chosen_among_the_allowed_and_at_least_one():
    scores = torch.tensor([[3.0, 1.0, 2.0, 9.0], [1.0, 1.0, 5.0, 0.0]])
    allowed = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert highest(scores, 0.5, allowed).tolist() == [[True, False, True, False], [True, False, True, False]]
    assert highest(scores, 0.0, allowed).sum(-1).tolist() == [1, 1]
    assert torch.equal(highest(scores, 1.0, allowed), allowed)
    assert not highest(scores, 0.5, torch.zeros_like(allowed)).any()  # none is allowed, so none is kept
    for share in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"from 0 to 1, not {share}"):
            highest(scores, share, allowed)


@given(st.integers(1, 3000), st.floats(0, 1))
def test_a_share_that_makes_a_whole_number_keeps_just_that(n, part):
    """0.3 of 50 is 15; in float32 it would be a little more, and 16 were kept. 0.07 of 100 is more even in float64."""
    k = max(1, round(part * n))
    assert highest(torch.arange(float(n)), k / n, torch.ones(n, dtype=torch.bool)).sum() == k
    assert highest(torch.arange(50.0), 0.3, torch.ones(50, dtype=torch.bool)).sum() == 15
    assert 0.07 * 100 > 7 and highest(torch.arange(100.0), 0.07, torch.ones(100, dtype=torch.bool)).sum() == 7


@given(st.integers(1, 400), st.floats(0, 0.99), st.integers(0, 5))
def test_the_threshold_cuts_the_share_that_was_asked_for(count, sparsity, seed):
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cut = (values.abs() <= threshold(values, sparsity)).double().mean().item()
    assert abs(cut - sparsity) <= 0.5 / count + 1e-12


def test_amdahl_of_the_real_shape_is_that_of_the_specification():
    limits = [round(speedup(skippable(SMOL, "mlp"), s), 2) for s in (0.5, 0.9)]
    limits += [round(speedup(skippable(SMOL, "gate first"), s), 2) for s in (0.5, 0.9)]
    assert [*limits, round(speedup(skippable(SMOL, "inputs"), 0.5), 2)] == [1.42, 2.14, 1.25, 1.55, 1.65]
    shares = [attention_share(SMOL, n) for n in (512, 1024, 2048, 4096, 8192)]
    assert [round(100 * share, 1) for share in shares] == [4.2, 8.1, 14.9, 26.0, 41.2]
    assert [round(speedup(share, 1), 2) for share in shares] == [1.04, 1.09, 1.18, 1.35, 1.70]
    assert [round(speedup(share / 2, 1), 2) for share in shares] == [1.02, 1.04, 1.08, 1.15, 1.26]


@pytest.mark.parametrize("name, matrices", [("smollm2-135m", 3), ("opt-1.3b", 2)])
def test_the_intermediate_vector_tells_of_the_last_matrix_alone(name, matrices):
    shape = CONFIGS[name]
    assert skippable(shape, "intermediate") == pytest.approx(skippable(shape, "mlp") / matrices)
    assert (
        skippable(shape, "mlp")
        == shape.num_layers * matrices * shape.hidden_size * shape.intermediate_size / shape.weights
    )
    assert skippable(shape, "mlp") < skippable(shape, "inputs") == shape.layer_weights / shape.weights
    with pytest.raises(ValueError, match=rf"{name} cannot know 'rows'; choose from mlp, .*intermediate, inputs\."):
        skippable(shape, "rows")


def test_rows_that_skip_on_their_own_together_skip_little():
    assert [round(100 * union(0.9, w)) for w in (1, 5, 8)] == [10, 41, 57]
    assert round(100 * union(0.5, 5)) == 97
    random = torch.Generator().manual_seed(0)
    active = torch.rand(5, 20_000, generator=random) > 0.9
    assert active.any(0).double().mean().item() == pytest.approx(union(0.9, 5), abs=0.01)
