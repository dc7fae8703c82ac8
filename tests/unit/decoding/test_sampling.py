"""Acceptance rules: exact enumeration, frequencies, wrong rules that must be caught, and Typical by hand."""

from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.distributions import correction_from_p, exact_distribution
from support.examples import examples
from support.proposers import tree_of

from lessons_lib.decoding import sampling
from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.sampling import Greedy, Sampling, Typical, choose_child, nucleus
from lessons_lib.measure.quality import chi_square

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def distribution(p, q, count, mode, choose=choose_child):
    """Exact output distribution and acceptance at one node, over all draws of `count` children from q."""
    if mode == "without_replacement":
        count = min(count, int((q > 0).sum()))  # no more can be sampled

    def run():
        children = torch.multinomial(q, count, replacement=mode == "iid").tolist()
        return choose(p, children, q, mode, None)

    return summed(run, len(p))


def summed(run, size: int):
    """run() -> (token, whether it is one of the children): the distribution of tokens, and how often it is."""
    out, accepted = torch.zeros(size, dtype=torch.float64), 0.0
    for (token, hit), chance in exact_distribution(run).items():
        out[token] += chance
        accepted += chance * hit
    return out, accepted


@pytest.mark.parametrize("count, mode, expected", [
    (1, "iid", Fraction(7, 10)),
    (2, "iid", Fraction(19, 25)),
    (2, "without_replacement", Fraction(283, 350)),
    (3, "iid", Fraction(101, 125)),
    (3, "without_replacement", Fraction(1)),
])  # fmt: skip
def test_output_is_p_and_acceptance_as_computed_by_hand(count, mode, expected):
    out, accepted = distribution(P, Q, count, mode)
    torch.testing.assert_close(out, P, rtol=0, atol=1e-12)
    assert accepted == pytest.approx(float(expected), abs=1e-12)


def test_point_children_are_accepted_with_their_own_mass():
    out, accepted = summed(lambda: choose_child(P, [1, 2], None, "unsampled", None), 3)
    assert accepted == pytest.approx(0.5)
    torch.testing.assert_close(out, P, rtol=0, atol=1e-12)


@examples(60)
@given(
    p=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any),
    q=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any),
    count=st.integers(1, 3),
    mode=st.sampled_from(["iid", "without_replacement"]),
)
@example([0, 0, 0, 1], [0, 0, 0, 1], 2, "without_replacement")
def test_any_p_and_q_give_p(p, q, count, mode):
    p, q = (torch.tensor(x, dtype=torch.float64) / sum(x) for x in (p, q))
    torch.testing.assert_close(distribution(p, q, count, mode)[0], p, rtol=0, atol=1e-9)


def swapped_ratio(p, children, q, mode, generator):
    for token in children:
        if sampling._uniform(p, generator) * p[token] < q[token]:
            return token, True
        p = sampling.residual(p, q)
    return int(torch.multinomial(p, 1)), False


def only_where_p_is_higher(p, children, q, mode, generator):
    for token in children:
        if p[token] >= q[token]:
            return token, True
        p = sampling.residual(p, q)
    return int(torch.multinomial(p, 1)), False


def dropping_the_doubtful(p, children, q, mode, generator):
    return choose_child(p, [token for token in children if q[token] >= 0.5], q, mode, generator)


@pytest.mark.parametrize("wrong", [swapped_ratio, correction_from_p, only_where_p_is_higher, dropping_the_doubtful])
def test_the_enumeration_catches_a_wrong_rule(wrong):
    assert (distribution(P, Q, 1, "iid", wrong)[0] - P).abs().max() > 0.01


def test_the_ratio_rule_on_a_top_1_child_is_caught_as_biased():
    """p=(.5,.5), q=(.6,.4), one top-1 child: (.833, .167) by the ratio, (.5, .5) by the point rule."""
    p, q = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0.6, 0.4], dtype=torch.float64)
    first = {
        mode: float(summed(lambda m=mode: choose_child(p, [0], q, m, None), 2)[0][0]) for mode in ("iid", "unsampled")
    }
    assert first == {"iid": pytest.approx(5 / 6), "unsampled": pytest.approx(0.5)}


def test_a_token_of_probability_zero_is_refused_even_by_a_zero_draw():
    p = torch.tensor([0.0, 1.0])
    with mock.patch.object(sampling, "_uniform", lambda p, generator: torch.zeros(())):
        assert choose_child(p, [0], torch.tensor([1.0, 0.0]), "iid", None) == (1, False)


def test_a_rejection_by_rounding_alone_samples_from_p():
    with mock.patch.object(sampling, "_uniform", lambda p, generator: torch.ones(())):  # nothing is owed
        token, accepted = choose_child(P, [0], P, "iid", torch.Generator().manual_seed(0))
    assert not accepted and token in range(3)


def test_all_that_is_random_comes_from_the_generator():
    def tokens(seed):
        generator = torch.Generator().manual_seed(seed)
        return [choose_child(P, [1], Q, "iid", generator) for _ in range(20)]

    assert tokens(1) == tokens(1) != tokens(2)


def test_an_exhausted_q_leaves_no_nan():
    q = torch.tensor([1.0, 0.0, 0.0])
    p = torch.tensor([0.0, 0.5, 0.5])
    token, accepted = choose_child(p, [0, 1], q, "without_replacement", torch.Generator().manual_seed(0))
    assert token in (1, 2)


@pytest.mark.parametrize("rule, caught", [(choose_child, False), (correction_from_p, True)])
def test_generated_pairs_follow_the_targets_distribution(rule, caught):
    """Chi-square of two tokens from chains sampled from q; sampling the correction from p must be caught."""
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.rand(2, 4, generator=generator).softmax(-1) ** 3 for _ in range(2))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    logits = p.log()[[0, 1, 1, 1, 1]]  # second row after any first token
    counts = torch.zeros(4, 4)
    runs = 2500
    with mock.patch.object(sampling, "choose_child", rule):
        for _ in range(runs):
            first = int(torch.multinomial(q[0], 1, generator=generator))
            tree = tree_of([first], [-1], "iid", {-1: q[0]})
            path, bonus = Sampling().accept(tree, logits, generator)
            pair = (first, bonus) if path else (bonus, int(torch.multinomial(p[1], 1, generator=generator)))
            counts[pair] += 1
    _, chance = chi_square(counts, p[0][:, None] * p[1][None])
    assert (chance < 1e-3) == caught


def test_greedy_follows_the_tree_as_far_as_it_agrees():
    tree = tree_of([7, 4, 5, 9], [-1, -1, 1, 2])
    logits = torch.full((5, 10), -1.0)
    for row, choice in enumerate([4, 0, 5, 3, 0]):  # the root says 4, node 1 (4) says 5, node 2 (5) says 3
        logits[row, choice] = 1
    assert Greedy().accept(tree, logits) == ([1, 2], 3)


def test_sampling_tries_siblings_in_turn_and_judges_each_by_its_parents_rows():
    """1 is refused (.9 · .8 > .2), then 2 taken (.9 · .1 < .5, now owed); below it 0 is refused, and only 1 is owed."""
    q = {
        parent: torch.tensor(row, dtype=torch.float64)
        for parent, row in {-1: [0.1, 0.8, 0.1], 1: [0.5, 0.05, 0.45]}.items()
    }
    p = torch.tensor([[0.4, 0.2, 0.4], [0, 0, 1], [0.2, 0.35, 0.45], [0, 0, 1]], dtype=torch.float64)
    tree, numbers = tree_of([1, 2, 0], [-1, -1, 1], "iid", q), iter([0.9, 0.9, 0.5])
    with mock.patch.object(sampling, "_uniform", lambda p, generator: torch.tensor(next(numbers))):
        assert Sampling().accept(tree, p.log()) == ([1], 1)


def test_processing_equals_transformers_warpers():
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = TemperatureLogitsWarper(0.7)(None, logits)
    scores = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(20)(None, scores))
    found = Sampling(temperature=0.7, top_k=20, top_p=0.8).probabilities(logits)
    torch.testing.assert_close(found, scores.softmax(-1), rtol=0, atol=1e-12)


def test_logits_of_half_precision_are_processed_in_single_precision():
    logits = torch.randn(40, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(Sampling(0.7).probabilities(logits), Sampling(0.7).probabilities(logits.float()))


def test_the_nucleus_keeps_the_fewest_tokens_that_reach_the_mass():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    torch.testing.assert_close(nucleus(p, 0.6), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(nucleus(p, 0.01), torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(nucleus(p, 1e-50), torch.tensor([1.0, 0, 0, 0]))  # as a float32 it is 0


@pytest.fixture
def elsewhere(monkeypatch):
    """A generator on another device than the model ("meta" stands for it), and torch's refusal to mix the two."""
    multinomial, rand = torch.multinomial, torch.rand

    def strict_multinomial(p, count, replacement=False, generator=None):
        assert p.device == generator.device, "Expected a generator on the device of p"
        return multinomial(torch.ones(p.shape), count, replacement)

    def strict_rand(*size, dtype, device, generator):
        assert device == generator.device, "Expected a generator on the device of the result"
        return rand(*size, dtype=dtype)

    monkeypatch.setattr(torch, "multinomial", strict_multinomial)
    monkeypatch.setattr(torch, "rand", strict_rand)
    return SimpleNamespace(device=torch.device("meta"))


@pytest.mark.parametrize("mode", ["unsampled", "iid", "without_replacement"])
def test_a_token_is_judged_and_sampled_by_a_generator_on_another_device(elsewhere, mode):
    for children in ([], [1], [2, 1]):
        token, accepted = choose_child(P, children, Q, mode, elsewhere)
        assert 0 <= token < 3 and (token in children or not accepted)
    path, token = Typical().accept(DraftTree(), P.log()[None], elsewhere)
    assert path == [] and 0 <= token < 3
    if mode != "unsampled":
        nodes = sampling.sample_children(tree := DraftTree(), -1, Q, 2, mode, elsewhere)
        assert len(nodes) == len(tree.children[-1].tokens) == 2


def logits_of(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def accepted(p: list[float], rule=Typical()) -> list[int]:  # noqa: B008
    """The tokens that would be accepted as the only draft token."""
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


def test_a_draft_token_that_is_just_as_probable_as_the_threshold_is_refused():
    p = [0.5, 0.25, 0.25]  # delta exp(-H) is 0.32, so that epsilon rules
    assert accepted(p, Typical(epsilon=0.25, delta=0.9)) == [0]
    assert accepted(p, Typical(epsilon=0.24, delta=0.9)) == [0, 1, 2]


def test_the_temperature_flattens_p_before_it_is_judged():
    p = [0.9, 0.08, 0.02]
    assert accepted(p) == [0] and accepted(p, Typical(temperature=4.0)) == [0, 1, 2]


SHARP, FLAT = [0.97, 0.01, 0.01, 0.01], [0.45, 0.35, 0.12, 0.08]


def test_the_longest_path_wins_over_a_more_probable_one():
    tree = tree_of([0, 1, 2, 3], [-1, -1, 1, 2])  # 0 | 1 - 2 - 3
    path, _ = Typical().accept(tree, logits_of(FLAT, SHARP, FLAT, SHARP, FLAT), torch.Generator().manual_seed(0))
    assert path == [1, 2]  # 1 then 2; 3 is not typical after them


def test_of_equally_long_paths_the_most_probable_wins():
    tree = tree_of([2, 0, 1, 0], [-1, -1, 0, 1])  # 2 - 1 | 0 - 0
    low, high = [0.12 * 0.35, 0.45 * 0.45]
    assert low < high
    path, _ = Typical().accept(tree, logits_of(*[FLAT] * 5), torch.Generator().manual_seed(0))
    assert path == [1, 3]


def test_a_draft_token_below_one_that_is_refused_is_refused():
    tree = tree_of([3, 0], [-1, 0])
    path, _ = Typical().accept(tree, logits_of(FLAT, SHARP, SHARP), torch.Generator().manual_seed(0))
    assert path == []


def test_a_draft_is_judged_by_the_row_that_it_stands_below():
    """Anything goes where all is open, though the row after the draft token is sure of itself."""
    open_, sure = [0.02] * 50, [0.951, *[0.001] * 49]
    for rows, accepted_path in (((open_, sure), [0]), ((sure, open_), [])):
        tree = tree_of([7], [-1])
        assert Typical().accept(tree, logits_of(*rows), torch.Generator().manual_seed(0))[0] == accepted_path


def first_token(rule, draft: list[int]) -> dict:
    """The exact distribution of the first token."""
    tree = tree_of(draft, [-1] * len(draft))
    logits = logits_of(*[[0.5, 0.4, 0.1]] * (1 + len(draft)))

    def first():
        path, bonus = rule.accept(tree, logits)
        return tree.tokens[path[0]] if path else bonus

    return exact_distribution(first)


def test_without_draft_tokens_it_samples():
    assert first_token(Typical(), []) == pytest.approx({0: 0.5, 1: 0.4, 2: 0.1}) == first_token(Sampling(), [])


def test_it_is_lossy_and_says_so():
    assert first_token(Typical(), [1]) == {1: pytest.approx(1.0)}
    assert first_token(Sampling(), [1]) == pytest.approx({0: 0.5, 1: 0.4, 2: 0.1})
    assert not Typical.lossless and Sampling.lossless


def test_the_token_after_a_path_is_sampled_from_the_row_of_its_last_node():
    tree = DraftTree.chain([0, 0])
    sure = [[1 - 1e-9, 1e-9], [1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]]
    assert Typical().accept(tree, logits_of(*sure), torch.Generator().manual_seed(0)) == ([0, 1], 1)


@pytest.mark.parametrize("make", [
    lambda: Sampling(temperature=0.0), lambda: Sampling(top_k=-1), lambda: Sampling(top_p=0.0),
    lambda: Sampling(top_p=1.5), lambda: Sampling(temperature=1e-40), lambda: Sampling(temperature=float("inf")),
    lambda: Typical(epsilon=0.0), lambda: Typical(epsilon=1.0), lambda: Typical(delta=0.0), lambda: Typical(delta=1.5),
    lambda: Typical(temperature=0.0),
])  # fmt: skip
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="needed|at least 1e-06 and finite"):
        make()
