"""Typical acceptance by hand: its threshold, the path it takes, and how it is lossy."""

import math

import pytest
import torch
from support.distributions import exact_distribution
from support.proposers import tree_of

from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.sampling import Sampling, Typical


def logits_of(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def accepted(p: list[float], rule=Typical()) -> list[int]:  # noqa: B008
    """The tokens that would be accepted as the only guess."""
    found = []
    for token in range(len(p)):
        tree = tree_of([token], [-1])
        path, _ = rule.accept(tree, logits_of(p, p), torch.Generator().manual_seed(0))
        found += [token] * len(path)
    return found


@pytest.mark.parametrize("p, threshold, tokens", [
    ([0.97, 0.01, 0.01, 0.01], 0.09, [0]),
    ([0.25] * 4, 0.075, [0, 1, 2, 3]),
    ([0.02] * 50, 0.006, list(range(50))),
    ([0.45, 0.35, 0.12, 0.08], 0.09, [0, 1, 2]),
    ([0.40, 0.30, 0.22, 0.08], 0.0849, [0, 1, 2]),
    ([0.92, 0.08, 0.0], 0.09, [0]),
])  # fmt: skip
def test_the_threshold_and_what_passes_it_are_as_computed_by_hand(p, threshold, tokens):
    assert float(Typical().threshold(torch.tensor(p))) == pytest.approx(threshold, abs=5e-5)
    assert accepted(p) == tokens


def test_a_guess_that_is_just_as_probable_as_the_threshold_is_refused():
    p = [0.5, 0.25, 0.25]  # delta exp(-H) is 0.32, so that epsilon rules
    assert accepted(p, Typical(epsilon=0.25, delta=0.9)) == [0]
    assert accepted(p, Typical(epsilon=0.24, delta=0.9)) == [0, 1, 2]


def test_epsilon_and_delta_each_bound_what_is_asked():
    assert float(Typical(0.5, 0.3).threshold(torch.tensor([0.5, 0.5]))) == pytest.approx(0.15)
    assert float(Typical(0.1, 0.3).threshold(torch.tensor([0.5, 0.5]))) == pytest.approx(0.1)


def test_the_temperature_flattens_p_before_it_is_judged():
    p = [0.9, 0.08, 0.02]
    assert accepted(p) == [0] and accepted(p, Typical(temperature=4.0)) == [0, 1, 2]


SHARP, FLAT = [0.97, 0.01, 0.01, 0.01], [0.45, 0.35, 0.12, 0.08]


def test_the_longest_path_wins_over_a_more_probable_one():
    tree = tree_of([0, 1, 2, 3], [-1, -1, 1, 2])  # 0 | 1 - 2 - 3
    path, _ = Typical().accept(tree, logits_of(FLAT, SHARP, FLAT, SHARP, FLAT), torch.Generator().manual_seed(0))
    assert path == [1, 2]  # 1 then 2; 3 is not typical behind them


def test_of_equally_long_paths_the_most_probable_wins():
    tree = tree_of([2, 0, 1, 0], [-1, -1, 0, 1])  # 2 - 1 | 0 - 0
    low, high = [0.12 * 0.35, 0.45 * 0.45]
    assert low < high
    path, _ = Typical().accept(tree, logits_of(*[FLAT] * 5), torch.Generator().manual_seed(0))
    assert path == [1, 3]


def test_a_guess_behind_one_that_is_refused_is_refused():
    tree = tree_of([3, 0], [-1, 0])
    path, _ = Typical().accept(tree, logits_of(FLAT, SHARP, SHARP), torch.Generator().manual_seed(0))
    assert path == []


def test_a_guess_is_judged_by_the_row_that_it_stands_below():
    """Anything goes where all is open, though the row behind the guess is sure of itself."""
    open_, sure = [0.02] * 50, [0.951, *[0.001] * 49]
    for rows, accepted_path in (((open_, sure), [0]), ((sure, open_), [])):
        tree = tree_of([7], [-1])
        assert Typical().accept(tree, logits_of(*rows), torch.Generator().manual_seed(0))[0] == accepted_path


def distribution(rule, guesses: list[int]) -> dict:
    """The exact law of the first token."""
    tree = tree_of(guesses, [-1] * len(guesses))
    logits = logits_of(*[[0.5, 0.4, 0.1]] * (1 + len(guesses)))

    def first():
        path, bonus = rule.accept(tree, logits)
        return tree.tokens[path[0]] if path else bonus

    return exact_distribution(first)


def test_without_guesses_it_samples():
    assert distribution(Typical(), []) == pytest.approx({0: 0.5, 1: 0.4, 2: 0.1}) == distribution(Sampling(), [])


def test_it_is_lossy_and_says_so():
    assert distribution(Typical(), [1]) == {1: pytest.approx(1.0)}
    assert distribution(Sampling(), [1]) == pytest.approx({0: 0.5, 1: 0.4, 2: 0.1})
    assert not Typical.lossless and Sampling.lossless


def test_the_token_behind_a_path_is_drawn_from_the_row_of_its_last_node():
    tree = DraftTree.chain([0, 0])
    sure = [[1 - 1e-9, 1e-9], [1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]]
    assert Typical().accept(tree, logits_of(*sure), torch.Generator().manual_seed(0)) == ([0, 1], 1)


def test_the_entropy_rules_above_the_entropy_of_delta_over_epsilon():
    turning = math.log(0.3 / 0.09)
    for count in (2, 3, 4, 9):
        p = torch.full((count,), 1 / count, dtype=torch.float64)
        assert (float(Typical().threshold(p)) < 0.09) == (math.log(count) > turning)


@pytest.mark.parametrize("bad", [dict(epsilon=0.0), dict(epsilon=1.0), dict(delta=0.0), dict(delta=1.5), dict(temperature=0.0)])  # fmt: skip  # noqa: E501
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ValueError, match="needed|above 0"):
        Typical(**bad)
