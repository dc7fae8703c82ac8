"""Crossings and break-evens by hand: halfway on a logarithmic axis, outside the points, a curve that dips again."""

import math

import pytest

from lessons_lib.measure.cost import break_even_tokens, crossing


def test_halfway_between_two_values_is_the_geometric_mean_of_the_points():
    assert crossing([4, 16, 64], [1.0, 1.5, 2.5], 2.0) == pytest.approx(32)


def test_a_dip_after_an_early_rise_counts():
    assert crossing([1, 2, 4, 8], [3.0, 1.0, 3.0, 4.0], 2.0) == pytest.approx(2 * 2**0.5)


def test_a_curve_that_is_always_above_crosses_at_its_first_point():
    assert crossing([5, 10], [2.0, 3.0], 2.0) == 5


def test_a_curve_that_ends_below_never_crosses():
    assert math.isnan(crossing([1, 2, 4], [1.0, 3.0, 1.9], 2.0))


@pytest.mark.parametrize("startup, slow, fast, tokens", [
    (60, 0.04, 0.01, 2000), (61, 0.04, 0.01, 2034), (0, 0.04, 0.01, 0), (30, 0.04, 0.04, math.inf),
    (30, 0.01, 0.04, math.inf), (0, 0.04, 0.04, 0),
])  # fmt: skip
def test_break_even_is_the_first_token_at_which_the_start_is_earned_back(startup, slow, fast, tokens):
    assert break_even_tokens(startup, slow, fast) == tokens
