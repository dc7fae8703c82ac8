"""Draft-length schedules: their traces by hand, and an adaptive one that finds the best length."""

import random

import pytest

from lessons_lib.decoding.prediction import replay_draft
from lessons_lib.decoding.proposers.draft_length import Adaptive, Confidence, Constant, DraftLength
from lessons_lib.measure.cost import StepCost, best_gamma, width_cost

CURVE = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.8, 16: 3.0}


def played(schedule: DraftLength, alpha: float, steps: int) -> list[int]:
    """The draft lengths of `steps` steps in which draft tokens are accepted with probability alpha."""
    rng, lengths = random.Random(0), []
    for _ in range(steps):
        lengths.append(gamma := schedule.next())
        if gamma:
            accepted = next((i for i in range(gamma) if rng.random() >= alpha), gamma)
            schedule.observe(gamma, min(accepted + 1, gamma), accepted)
    return lengths


def test_confidence_stops_below_the_threshold():
    schedule = Confidence(gamma=7, threshold=0.4)
    assert schedule.next() == 7
    assert schedule.goes_on(0.4) and not schedule.goes_on(0.39)


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_adaptive_estimates_alpha_and_drafts_near_the_best_length(alpha):
    schedule = Adaptive(0.1, CURVE)
    lengths = played(schedule, alpha, 400)[200:]
    assert schedule.alpha == pytest.approx(alpha, abs=0.12)
    assert sum(lengths) / len(lengths) == pytest.approx(best_gamma(alpha, 0.1, CURVE), abs=2)


def test_adaptive_follows_the_formula_of_its_estimate():
    schedule = Adaptive(0.05, CURVE, most=12)
    assert schedule.next() == best_gamma(0.7, 0.05, CURVE, most=12)
    schedule.observe(4, 2, 1)
    assert schedule.alpha == pytest.approx((0.98 * 5.6 + 1) / (0.98 * 8 + 2))
    assert schedule.next() == best_gamma(schedule.alpha, 0.05, CURVE, most=12)


def test_adaptive_stops_speculating_but_looks_again_now_and_then():
    schedule = Adaptive(0.3, CURVE, probe_every=8)
    lengths = played(schedule, 0.0, 100)[20:]
    assert set(lengths) == {0, 1}
    assert sum(lengths) == 10
    gaps = [i for i, gamma in enumerate(lengths) if gamma]
    assert {b - a for a, b in zip(gaps, gaps[1:], strict=False)} == {8}


def test_adaptive_comes_back_when_drafts_turn_good():
    schedule = Adaptive(0.1, CURVE)
    played(schedule, 0.0, 100)
    assert max(played(schedule, 0.95, 300)[-50:]) >= 4


def test_what_earlier_texts_said_weighs_no_more_than_eight_draft_tokens():
    schedule = Adaptive(0.1)
    played(schedule, 0.2, 200)
    before = schedule.alpha
    schedule.reset()
    schedule.observe(4, 4, 4)
    assert schedule.alpha == pytest.approx((0.98 * 8 * before + 4) / (0.98 * 8 + 4))
    few = Adaptive(0.1)
    few.reset()
    few.observe(2, 2, 0)
    assert few.alpha == pytest.approx(0.98 * 5.6 / (0.98 * 8 + 2))


def test_adaptive_goes_on_drafting_while_stopping_may_be_a_mistake(monkeypatch):
    """c = 0.3 pays from alpha = 0.3 on: an estimate just below it, of few draft tokens, may be too low."""
    monkeypatch.setattr(Adaptive, "PRIOR", 0.28)
    schedule = Adaptive(0.3)
    assert best_gamma(schedule.alpha, 0.3) == 0 and schedule.expected_alpha == pytest.approx(
        0.28 + (0.28 * 0.72 / 8) ** 0.5
    )
    assert schedule.next() == 1
    schedule.observe(500, 500, 140)  # the same alpha, now for sure
    schedule.observe(500, 500, 100)
    assert schedule.expected_alpha < 0.3 and schedule.next() == 0


def test_adaptive_loses_little_on_the_best_fixed_length_of_each_kind():
    """Texts of 128 tokens, kinds in turn: what each kind takes against the best constant in hindsight."""
    rng, alphas = random.Random(1), (0.35, 0.5, 0.65)
    texts = [(alpha, [rng.random() < alpha for _ in range(128)]) for alpha in alphas * 8]
    v = {width: width_cost(CURVE)(width) for width in range(1, 18)}.get
    schedule, speeds = Adaptive(0.1, v), {}
    steps = [(alpha, replay_draft(text, schedule)) for alpha, text in texts]
    for alpha in alphas:
        adaptive = [step for kind, stats in steps if kind == alpha for step in stats]
        cost = StepCost(v=v, draft=0.1)
        fixed = [[step for kind, text in texts if kind == alpha for step in replay_draft(text, Constant(gamma))]
                 for gamma in range(1, 9)]  # fmt: skip
        speeds[alpha] = cost.speed(adaptive) / max(cost.speed(t) for t in fixed)
    assert 0.96 < min(speeds.values()) and max(speeds.values()) < 1.01


@pytest.mark.parametrize("make, said", [
    (lambda: Constant(0), "gamma must be at least 1, not 0"),
    (lambda: Confidence(0), "gamma must be at least 1, not 0"),
    (lambda: Adaptive(-0.1), "c must be at least 0"),
    (lambda: Adaptive(0.1, most=0), "most must be at least 1"),
    (lambda: Adaptive(0.1, probe_every=0), "probe_every must be at least 1"),
])  # fmt: skip
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_where_evidence_comes_without_drafting_a_stop_needs_no_probes():
    schedule = Adaptive(0.0, {1: 1.0, 5: 2.0}, most=4, probe_every=None)
    for _ in range(60):
        schedule.observe(4, 1, 0)
    assert [schedule.next() for _ in range(100)] == [0] * 100
    for _ in range(60):
        schedule.observe(4, 4, 4)
    assert schedule.next() == 4
