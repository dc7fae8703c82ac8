"""The arithmetic of guessing ahead: published and hand-computed values, and a simulation."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.decoding.generate import StepStats
from lessons_lib.measure.cost import (
    acceptance_rate,
    best_gamma,
    break_even,
    expected_tokens,
    padded_cost,
    walltime_factor,
    width_cost,
)

CURVE = {1: 1.0, 2: 1.5, 4: 2.0, 8: 4.0}


def test_a_target_that_pads_pays_for_the_next_compiled_width_and_runs_none_beyond():
    v = padded_cost({11: 2.0, 1: 1.0, 5: 1.5})
    assert [v(width) for width in (1, 2, 5, 6, 11, 12)] == [1.0, 1.5, 1.5, 2.0, 2.0, math.inf]
    assert best_gamma(0.6, 0, v) == 4  # 2.31 tokens for 1.5; ten guesses yield 2.49 for 2


def test_expected_tokens_by_hand_and_at_the_limits():
    assert expected_tokens(0.5, 2) == 1.75
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == expected_tokens(0.8, 0) == 1
    assert expected_tokens(0.9, 500) == pytest.approx(10)


@given(st.floats(0, 0.99), st.integers(0, 12))
def test_expected_tokens_is_the_mean_of_the_capped_geometric_law(alpha, gamma):
    distribution = [alpha ** (k - 1) * (1 - alpha) for k in range(1, gamma + 1)] + [alpha**gamma]
    assert sum(distribution) == pytest.approx(1)
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(k * p for k, p in enumerate(distribution, 1)))


@pytest.mark.parametrize("alpha, c, speed", [(0.75, 0.02, 3.16), (0.80, 0.04, 3.25), (0.82, 0.11, 2.50)])
def test_the_factor_gives_the_papers_predictions(alpha, c, speed):
    """Leviathan et al., table 2: English-German, greedy, gamma 7, small, base and large draft."""
    assert walltime_factor(alpha, 7, c) == pytest.approx(speed, abs=0.006)


def test_the_factor_counts_draft_width_and_overhead():
    assert walltime_factor(0.5, 1, 0.25, CURVE, h=0.25) == pytest.approx(1.5 / (0.25 + 1.5 + 0.25))


@pytest.mark.parametrize("alpha, row", [
    (0.5, [5, 4, 3, 2, 1]),
    (0.6, [7, 6, 4, 3, 2]),
    (0.7, [9, 8, 6, 4, 3]),
    (0.8, [14, 11, 8, 6, 4]),
    (0.9, [24, 19, 13, 10, 7]),
])  # fmt: skip
def test_the_best_draft_length_for_a_free_width(alpha, row):
    assert [best_gamma(alpha, c) for c in (0.01, 0.02, 0.05, 0.10, 0.20)] == row


def test_no_draft_is_best_where_none_pays():
    assert best_gamma(0.2, 0.3) == 0
    assert best_gamma(0.9, 0.1, lambda width: width) == 0  # a forward that costs as much as its rows
    assert best_gamma(1.0, 0.0, most=5) == 5


@given(st.floats(0.01, 0.9))
def test_with_a_free_width_a_draft_pays_as_soon_as_alpha_exceeds_c(c):
    assert break_even(c) == pytest.approx(c, abs=1e-9)


def test_the_break_even_divides_gain_from_loss():
    alpha = break_even(0.1, CURVE)
    assert best_gamma(alpha - 1e-6, 0.1, CURVE) == 0 < best_gamma(alpha + 1e-6, 0.1, CURVE)
    assert break_even(0.1, lambda width: 2 * width) == math.inf


def test_the_width_curve_is_read_between_and_beyond_its_points():
    v = width_cost(CURVE)
    assert [v(w) for w in (1, 2, 3, 4, 6, 8, 10)] == [1.0, 1.5, 1.75, 2.0, 3.0, 4.0, 5.0]
    assert width_cost({1: 1.0})(7) == width_cost(None)(7) == 1.0
    assert width_cost(lambda w: w / 2)(3) == 1.5


@pytest.mark.parametrize("bad", [(-0.1, 1), (1.1, 1), (0.5, -1)])
def test_impossible_values_are_refused(bad):
    with pytest.raises(ValueError, match="0 <= alpha <= 1 and gamma >= 0"):
        expected_tokens(*bad)


def test_the_acceptance_rate_counts_examined_guesses_only():
    steps = [
        StepStats(5, 5, committed=1, is_prefill=True),
        StepStats(6, 5, depth=4, accepted=4, committed=5),  # 4 of 4
        StepStats(11, 5, depth=4, accepted=1, committed=2),  # 1 of 2: the third and fourth were not looked at
        StepStats(13, 5, depth=4, accepted=2, committed=2, eos_cut=True),  # 2 of 2, the second one ended the text
        StepStats(15, 1, committed=1),  # nothing guessed
    ]
    assert acceptance_rate(steps) == 7 / 8
    assert math.isnan(acceptance_rate(steps[:1]))


def test_the_acceptance_rate_finds_alpha_where_accepted_over_proposed_does_not():
    rng, alpha, gamma, steps = random.Random(0), 0.7, 4, []
    for _ in range(20_000):
        accepted = next((i for i in range(gamma) if rng.random() >= alpha), gamma)
        steps.append(StepStats(1, gamma + 1, proposed=gamma, depth=gamma, accepted=accepted, committed=accepted + 1))
    assert acceptance_rate(steps) == pytest.approx(alpha, abs=0.01)
    assert sum(s.accepted for s in steps) / sum(s.proposed for s in steps) == pytest.approx(0.443, abs=0.01)
    assert sum(s.committed for s in steps) / len(steps) == pytest.approx(expected_tokens(alpha, gamma), abs=0.04)
