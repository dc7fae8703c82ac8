"""The claims of Medusa on a tiny model and heads that guess at random: what is counted, and how the three agree."""

import json

import pytest
from support.benches import ACCURACIES, TOKENS, another_file, asks, offline, with_heads

from bench import asking, fitting, medusa
from bench.fitting import Fitted
from bench.registry import NotMeasured, Run
from lessons_lib import Medusa, generate
from lessons_lib.decoding.generate import encode
from lessons_lib.decoding.proposers.medusa import best_tree, expected_tokens, regular
from lessons_lib.measure.clock import Ratio, Samples

COSTS = {1: 1.0, 3: 1.0, 61: 1.1}


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """bench/medusa.py with a tiny float64 model, random heads, three short questions of each kind, and wide steps that
    cost little, whatever this machine is busy with."""
    with_heads(monkeypatch, tmp_path)
    monkeypatch.setattr(fitting, "costs_of", lambda target, widths, *given: {width: COSTS[width] for width in widths})
    monkeypatch.setattr(fitting, "shares", lambda target, widths, repeats: {width: 0.01 for width in widths})
    asks(monkeypatch, medusa.KINDS * 3)
    medusa.rows.cache_clear()
    return medusa


CLAIMS = ("tokens", "vs_plain", "identity")


def test_all_claims_come_of_one_measurement_eager_compiled_and_in_8_bits(bench, monkeypatch):
    turned, each_method = [], asking.by_question.each_method
    count = lambda *given, **options: turned.append(given[0]) or each_method(*given, **options)  # noqa: E731
    monkeypatch.setattr(asking.by_question, "each_method", count)
    tokens, faster, identity = (getattr(bench, name)(Run(quick=False)) for name in CLAIMS)
    assert turned == [asking.eager()] * len(bench.KINDS) * bench.PER_KIND + [fitting.eight_bits()] * len(bench.KINDS)
    rows = faster.facts["questions"]
    assert [row["category"] for row in rows] == [kind for kind in bench.KINDS for _ in range(bench.PER_KIND)]
    names = ("plain", "medusa", "plain compiled", "medusa compiled")
    assert all(row[name]["tokens"] == TOKENS for row in rows for name in names)
    assert faster.facts["parted"] == {"medusa": 0, "medusa compiled": 0}
    assert faster.facts["largest_shortfall"] < 1e-9  # float64 is exact
    assert faster.facts["compiled"]["value"] > 0
    assert set(faster.facts["v"]) == set(faster.facts["heads_share"]) == {"eager", "compiled"}
    assert faster.note.startswith("eager 60 nodes, compiled 60 nodes; int8, compiled, one question a kind: ")
    assert faster.facts["int8"][0] > 0
    assert {name for row in faster.facts["int8_questions"] for name in row if name in names} == {"plain", "medusa"}
    assert identity.facts["tokens_per_forward"] == pytest.approx(tokens.facts["together"])
    for measured in (tokens, faster, identity):
        json.dumps(measured.facts)


def test_a_quick_run_asks_few_questions_and_none_in_8_bits(bench, monkeypatch):
    monkeypatch.setattr(fitting, "eight_bits", lambda: pytest.fail("it takes too long"))
    measured = bench.vs_plain(Run(quick=True))
    assert len(measured.facts["questions"]) == len(bench.KINDS) and "int8" not in measured.facts


def test_larger_trees_are_counted_by_replay_as_decoding_would_count_them(bench, monkeypatch):
    monkeypatch.setattr(bench, "SIZES", (2, 60))
    measured, steps = bench.tokens(Run(quick=False)), 0
    for question in asking.questions():
        ids, by = encode(asking.eager(), question.messages), Medusa(fitting.heads(), best_tree(ACCURACIES, 2))
        steps += len(generate(asking.eager(), ids, by, max_new_tokens=TOKENS).trace) - 1
    count = len(asking.questions())
    assert measured.facts["by_nodes"][2] == pytest.approx((TOKENS - 1) * count / steps)
    assert measured.facts["by_nodes"][60] == pytest.approx(measured.facts["together"])
    assert f"; 2 nodes would make it {measured.facts['by_nodes'][2]:.2f}, by replay; 60 nodes" in measured.note


def test_tokens_per_forward_are_those_that_decoding_takes_each_kind_counting_the_same(bench):
    measured, kinds = bench.tokens(Run(quick=False)), {}
    by = Medusa(fitting.heads(), regular(60))
    for question in asking.questions():
        trace = generate(asking.eager(), encode(asking.eager(), question.messages), by, max_new_tokens=TOKENS).trace
        kinds.setdefault(question.category, []).append(len(trace) - 1)
    tau = {kind: (TOKENS - 1) * len(forwards) / sum(forwards) for kind, forwards in kinds.items()}
    assert measured.facts["tokens_per_forward"] == pytest.approx(tau) and max(tau.values()) > 1.2
    assert measured.ratio.value == pytest.approx(sum(tau.values()) / len(tau))
    assert measured.facts["choices"] == tuple((rank,) for rank in range(60))
    assert measured.facts["expected"] == pytest.approx(expected_tokens(regular(60), ACCURACIES))


# the identity


def made(forwards: int, seconds: float, forwarded: int) -> dict:
    return {"tokens": 13, "forwards": forwards, "seconds": 3 + seconds, "prefill": 3.0, "forwarded": forwarded}


def texts(*of_medusa: float) -> list[dict]:
    """12 plain steps of a second; Medusa takes 6 steps of 4 rows, and so many seconds."""
    short = {"category": "qa", "short": 3}
    long = [{"category": "qa", "plain": made(13, 12.0, 12), "medusa": made(7, taken, 24)} for taken in of_medusa]
    return [short, *long]


PREDICTED = Fitted(regular(3), {1: 1.0, 5: 1.4}, {1: 0.0, 5: 0.2})  # of 4 rows: 1.3 and 0.15
JUST_RIGHT = 6 * 1.45


@pytest.mark.parametrize("taken, error", [
    ([JUST_RIGHT], 0.0), ([JUST_RIGHT / 1.2], 0.2), ([JUST_RIGHT / 0.7], 0.3),
    ([JUST_RIGHT, JUST_RIGHT / 1.2], 2 / (1 + 1 / 1.2) - 1),
])  # fmt: skip
def test_speedup_tokens_and_predicted_overhead_agree_by_hand(bench, monkeypatch, taken, error):
    monkeypatch.setattr(bench, "rows", lambda run: texts(*taken))
    monkeypatch.setattr(bench, "fitted", lambda target, repeats: PREDICTED)
    measured = bench.identity(Run(quick=False))
    assert measured.ratio.value == pytest.approx(error)
    facts = measured.facts
    assert facts["speedup"] == pytest.approx(12 * len(taken) / sum(taken))
    assert (facts["tokens_per_forward"], facts["rows"], facts["overhead"]) == pytest.approx((2, 4, 1.45))
    assert "2.00 tokens per step of 4.0 rows, overhead 1.45 predicted" in measured.note
    assert f"{sum(taken) / (6 * len(taken)):.2f} in the run" in measured.note


def test_the_identity_is_not_true_by_definition(bench, monkeypatch):
    """The same run with another overhead predicted."""
    monkeypatch.setattr(bench, "rows", lambda run: texts(JUST_RIGHT))
    monkeypatch.setattr(bench, "fitted", lambda target, repeats: Fitted(regular(3), {1: 1.0, 5: 1.0}, {1: 0.0}))
    assert bench.identity(Run(quick=False)).ratio.value == pytest.approx(1 - 1 / 1.45)


@pytest.mark.parametrize("ratio, error", [
    ((0.9, 0.85, 1.05), (0.1, 0.0, 0.15)), ((1.2, 1.1, 1.3), (0.2, 0.1, 0.3)), ((0.8, 0.7, 0.9), (0.2, 0.1, 0.3)),
])  # fmt: skip
def test_an_error_is_how_far_a_ratio_is_from_one(ratio, error):
    found = medusa.off_by(Ratio(*ratio, Samples((1.0,)), Samples((1.0,))))
    assert (found.value, found.low, found.high) == pytest.approx(error)


def test_what_was_measured_with_other_heads_or_trees_is_measured_again(bench):
    fit, other = (Fitted(regular(width), COSTS, {1: 0.0}) for width in (3, 4))
    before = bench.settings({"eager": fit})
    assert before == bench.settings({"eager": fit}) and before["nodes"] == {"eager": 3}
    assert before != bench.settings({"eager": other})
    next(fitting.heads().parameters()).data[0, 0] += 1e-3
    assert before["weights"] != bench.settings({"eager": fit})["weights"]


@pytest.mark.parametrize("name", CLAIMS)
def test_without_heads_a_claim_says_how_to_make_them_before_anything_is_compiled(monkeypatch, tmp_path, name):
    offline(monkeypatch, tmp_path)
    monkeypatch.setattr("lessons_lib.models.trained.OURS", tmp_path)
    medusa.rows.cache_clear()
    fitting.heads.cache_clear()
    monkeypatch.setattr(asking, "compiled", lambda: pytest.fail("this takes minutes"))
    with pytest.raises(NotMeasured, match="smol-medusa is not there; train heads with .* and store them") as lack:
        getattr(medusa, name)(Run(quick=True))
    assert str(tmp_path) not in str(lack.value)


def test_another_files_questions_are_asked_of_the_eager_target_and_in_8_bits(bench, monkeypatch, tmp_path):
    run = Run(quick=False, questions=another_file(monkeypatch, tmp_path))
    measured = bench.vs_plain(run)
    for rows in (measured.facts["questions"], measured.facts["int8_questions"]):
        assert [(row["question_id"], row["turn"]) for row in rows] == [(81, 1), (81, 2)]
    assert measured.facts["compiled"] is None and set(bench.tokens(run).facts["tokens_per_forward"]) == {"roleplay"}
