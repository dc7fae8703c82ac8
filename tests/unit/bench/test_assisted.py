"""The claims of assisted decoding on a tiny model and a draft like it: what is counted, replayed and compared."""

import json

import pytest
from support.benches import TOKENS, asks, offline

from bench import common, questions
from bench.common import Run
from lessons_lib import DraftModel, generate
from lessons_lib.data import Question
from lessons_lib.decoding.generate import tokens_per_pass
from lessons_lib.decoding.proposers.draft_length import Adaptive, Constant
from lessons_lib.decoding.text import encode
from lessons_lib.measure.cost import width_cost

R, W = True, False


@pytest.fixture
def assisted(monkeypatch):
    """bench/assisted.py with a tiny model, a tiny draft, and four short questions of each kind."""
    from bench import assisted

    _, draft = offline(monkeypatch)
    drafting = draft.target()
    monkeypatch.setattr(assisted, "draft", lambda: draft)
    monkeypatch.setattr(assisted, "drafting", lambda: drafting)
    asks(monkeypatch, assisted.KINDS * 4)
    held_out = [Question(1000 + i, kind, (f"held out {kind}",)) for i, kind in enumerate(assisted.HELD_OUT_KINDS)]
    own = questions.questions()
    monkeypatch.setattr(assisted.prompts, "questions", lambda path=None: held_out if path else own)
    for cached in (assisted.cost_of_draft, assisted.texts):
        cached.cache_clear()
    return assisted


def test_a_claim_of_mixed_prompts_measures_each_kind_eager_and_compiled(assisted):
    measured = assisted.mixed(Run(quick=True))
    rows = measured.facts["questions"]
    assert [row["category"] for row in rows] == list(assisted.KINDS)
    names = ("plain", "assisted", "plain compiled", "assisted compiled")
    assert all(row[name]["tokens"] == TOKENS for row in rows for name in names)
    assert measured.facts["parted"] == {"assisted": 0, "assisted compiled": 0}
    assert max(measured.facts["tokens_per_pass"].values()) > 1  # the draft was asked
    assert set(measured.facts["width_costs"]) == {"eager", "compiled"}
    json.dumps(measured.facts)


def test_the_claim_against_transformers_shows_our_loop_and_the_compiled_target_beside(assisted):
    measured = assisted.vs_transformers(Run(quick=True))
    rows = measured.facts["questions"]
    assert measured.facts["parted"] == dict.fromkeys(("theirs", "ours", "ours compiled", "loop"), 0)
    # the same draft tokens either way
    assert all(row["loop"]["forward_passes"] == row["ours"]["forward_passes"] for row in rows)


def test_transformers_drafts_as_long_as_ours_and_takes_as_many_passes(assisted):
    """Its first pass verifies draft tokens with the prompt, where ours yields a token of its own first."""
    ids, small, fed = [5, 80, 3, 3, 61], assisted.assistant(), []
    target = common.eager()
    new, stats = questions.ours(target, ids, assisted.drafter(target))
    network = common.model().network
    hook = network.register_forward_pre_hook(lambda m, a, k: fed.append(k["input_ids"].shape[1]), with_kwargs=True)
    theirs, _ = questions.theirs(ids, draft=small)
    hook.remove()
    assert new == theirs and fed[0] == len(ids) + assisted.GAMMA
    assert abs(len(fed) - len(stats)) <= 1


def test_tokens_per_pass_are_those_that_decoding_takes(assisted):
    measured = assisted.tokens_per_pass(assisted.Run(quick=True))
    for kind, rows in assisted.texts(assisted.Run(quick=True)).items():
        spent = []
        for row in rows:
            question = next(q for q in assisted.prompts.measured()
                            if (q.question_id, q.category) == (row["question_id"], kind))  # fmt: skip
            by = DraftModel(assisted.drafting(), assisted.GAMMA)
            spent += generate(
                common.eager(), encode(common.eager(), question.messages), by, max_new_tokens=TOKENS
            ).stats
        assert measured.facts["tokens_per_pass"][kind] == pytest.approx(tokens_per_pass(spent))
    assert measured.ratio.value == pytest.approx(sum(measured.facts["tokens_per_pass"].values()) / 5)
    assert measured.facts["by_gamma"][assisted.GAMMA] == pytest.approx(measured.ratio.value)
    assert max(measured.facts["tokens_per_pass"].values()) > 1.2
    assert set("".join(row["right"] for row in measured.facts["texts"])) == {"0", "1"}
    json.dumps(measured.facts)


def test_adaptive_is_held_against_the_best_fixed_length_of_the_worst_kind(assisted, monkeypatch):
    """By hand: c = 0.5, v = 1. All right: the longest wins; all wrong: plain decoding, which costs 1 a token."""
    texts = {"chat": [{"right": [R] * 34}], "qa": [{"right": [W] * 20}, {"right": [W] * 20}]}
    monkeypatch.setattr(assisted, "texts", lambda run: texts)
    monkeypatch.setattr(assisted, "cost_of_draft", lambda repeats, target: [None, type("C", (), {"value": 0.5})])
    slow = {1: 1.0, 2: 3.0, 17: 33.0}  # compiled, where no draft pays
    costs = lambda target, *given, **options: {1: 1.0, 17: 1.0} if target is common.eager() else slow  # noqa: E731
    monkeypatch.setattr(common, "costs_of", costs)
    measured = assisted.adaptive(assisted.Run(quick=True))
    facts = measured.facts
    assert facts["best_fixed"] == {"chat": 16, "qa": 0} and set(facts["by_category"]) == {"chat", "qa"}
    assert measured.ratio.value == min(facts["by_category"].values()) < 1
    assert facts["alone"]["qa"] == pytest.approx(40 / sum(cost for _, cost in by_hand(assisted, texts["qa"])))
    assert f"qa {facts['by_category']['qa']:.2f}" in measured.note
    assert "best fixed length: chat 16, qa 0" in measured.note
    compiled = facts["compiled"]
    assert compiled["best_fixed"] == {"chat": 0, "qa": 0} and compiled["width_costs"] == slow
    worst = min(compiled["by_category"], key=compiled["by_category"].get)
    assert f"compiled, worst kind {worst}: chat {compiled['by_category']['chat']:.2f}" in measured.note
    json.dumps(facts)


def by_hand(assisted, rows):
    return assisted.spent([row["right"] for row in rows], Adaptive(0.5, most=16), 0.5, width_cost(None))


def test_one_schedule_goes_through_the_kinds_in_turn(assisted):
    seen = []

    class Noting(Constant):
        def observe(self, depth, checked, accepted):
            seen.append(accepted)

    found = assisted.spent_in_turn({"a": [[R, R], [R, R]], "b": [[W, W]]}, Noting(1), 0.1, lambda width: float(width))
    assert seen == [1, 0, 1] and found == {"a": [(2, 2.1), (2, 2.1)], "b": [(2, pytest.approx(3.1))]}
