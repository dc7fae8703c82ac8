"""The claims of Medusa on a tiny model and heads that predict at random: the counts, and which tree a target gets."""

import json

import pytest
from support.benches import ACCURACIES, TOKENS, WIDTHS, asks, with_heads
from support.heads import heads_of

from bench import common, medusa, questions
from bench.common import Run
from bench.medusa import Fitted
from lessons_lib import Medusa, generate
from lessons_lib.decoding.proposers.tree_shape import regular
from lessons_lib.decoding.text import encode

COSTS = {1: 1.0, 3: 1.0, 61: 1.1}

CLAIMS = ("tokens", "vs_plain", "identity")


@pytest.fixture
def bench(monkeypatch):
    """bench/medusa.py with a tiny float64 model, random heads, three short questions of each kind, and wide steps that
    cost little, whatever this machine is busy with."""
    with_heads(monkeypatch)
    cheap(monkeypatch, COSTS, dict.fromkeys(WIDTHS, 0.01))
    asks(monkeypatch, medusa.KINDS * 3)
    medusa.rows.cache_clear()
    return medusa


@pytest.fixture
def tiny_heads(monkeypatch):
    """The same, and nothing is known of what steps cost."""
    with_heads(monkeypatch)


def cheap(monkeypatch, v, c) -> None:
    """Steps cost so much, whatever this machine is busy with."""
    monkeypatch.setattr(medusa, "costs_of", lambda target, widths, *given: {width: v[width] for width in widths})
    monkeypatch.setattr(medusa, "shares", lambda target, widths, *given: dict.fromkeys(widths, 0.0) | c)


def test_all_claims_come_of_one_measurement_eager_and_compiled(bench, monkeypatch):
    turned, each_method = [], questions.each_method
    count = lambda *given, **options: turned.append(given[0]) or each_method(*given, **options)  # noqa: E731
    monkeypatch.setattr(questions, "each_method", count)
    tokens, faster, identity = (getattr(bench, name)(Run(quick=True)) for name in CLAIMS)
    assert turned == [common.eager()] * len(bench.KINDS)
    rows = faster.facts["questions"]
    names = ("plain", "medusa", "plain compiled", "medusa compiled")
    assert all(row[name]["tokens"] == TOKENS for row in rows for name in names)
    assert faster.facts["parted"] == {"medusa": 0, "medusa compiled": 0}
    assert faster.facts["largest_logit_gap"] < 1e-9  # float64 is exact
    assert set(faster.facts["v"]) == set(faster.facts["heads_share"]) == {"eager", "compiled"}
    assert faster.note.startswith("tree: eager 60 nodes, compiled 60 nodes; ")
    assert identity.facts["tokens_per_pass"] == pytest.approx(tokens.facts["together"])
    for measured in (tokens, faster, identity):
        json.dumps(measured.facts)


def test_tokens_per_pass_are_those_that_decoding_takes_each_kind_counting_the_same(bench):
    measured, kinds = bench.tokens(Run(quick=False)), {}
    by = Medusa(medusa.heads(), regular(60))
    for question in questions.questions():
        stats = generate(common.eager(), encode(common.eager(), question.messages), by, max_new_tokens=TOKENS).stats
        kinds.setdefault(question.category, []).append(len(stats) - 1)
    tau = {kind: (TOKENS - 1) * len(passes) / sum(passes) for kind, passes in kinds.items()}
    assert measured.facts["tokens_per_pass"] == pytest.approx(tau) and max(tau.values()) > 1.2
    assert measured.ratio.value == pytest.approx(sum(tau.values()) / len(tau))
    assert measured.facts["choices"] == tuple((rank,) for rank in range(60))
    assert measured.facts["expected"] == pytest.approx(regular(60).expected_tokens(ACCURACIES))


def made(passes: int, seconds: float, tokens: int) -> dict:
    return {
        "tokens": 13, "forward_passes": passes, "seconds": 3 + seconds, "prefill": 3.0, "input_tokens": tokens,
    }  # fmt: skip


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
    assert (facts["tokens_per_pass"], facts["rows"], facts["overhead"]) == pytest.approx((2, 4, 1.45))
    assert "2.00 tokens per step of 4.0 input tokens, cost of a step 1.45 predicted" in measured.note
    assert f"{sum(taken) / (6 * len(taken)):.2f} measured" in measured.note


@pytest.mark.usefixtures("tiny_heads")
@pytest.mark.parametrize("v, c, nodes", [
    (COSTS, {}, 60),
    ({1: 1.0, 3: 1.0, 61: 3.0}, {}, 2),
    (COSTS, {61: 2.0}, 2),  # what a step does beside its pass counts, too
    ({1: 1.0, 3: 2.0, 61: 5.0}, {}, 2),  # without a tree there would be nothing to measure
])  # fmt: skip
def test_the_tree_is_the_fastest_by_what_wide_steps_cost(monkeypatch, v, c, nodes):
    cheap(monkeypatch, v, c)
    found = medusa.fitted(common.model().target(), 3)
    assert len(found.tree.choices) == nodes
    assert found.overhead(61) == pytest.approx(v[61] + c.get(61, 0.0))


@pytest.mark.usefixtures("tiny_heads")
def test_a_compiled_target_gets_a_tree_of_a_width_that_it_is_compiled_for(monkeypatch):
    cheap(monkeypatch, COSTS, {})
    target = common.model().target()
    target.widths = [1, 3]
    assert len(medusa.fitted(target, 3).tree.choices) == 2
    given_up = common.model().target()
    given_up.widths = []  # nothing compiles here
    assert len(medusa.fitted(given_up, 3).tree.choices) == 60


@pytest.mark.usefixtures("tiny_heads")
def test_what_is_timed_beside_the_pass_is_a_steps_own_choice():
    """After the prompt's own token it takes what decoding takes there, again and again."""
    target, prompt = common.eager(), common.prompt_of(medusa.CACHED)
    text, accepted = generate(target, prompt, max_new_tokens=TOKENS).ids, 0
    for seed in range(8):
        call = medusa.around(target, Medusa(heads_of(common.model().network, 2, seed), regular(60, 4)))
        path, tokens = call()
        assert tokens == text[1 : 1 + len(tokens)] and len(path) == len(tokens) - 1
        assert call() == (path, tokens)
        accepted += len(path)
    assert accepted > 2
