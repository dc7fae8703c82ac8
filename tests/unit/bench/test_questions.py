"""Ratios by hand, questions measured one by one; claims of prompt lookup and lookahead."""

import json

import pytest
from support.benches import TOKENS, TURNS, another_file, asks, offline

from bench import common, lookahead, prompt_lookup, questions
from bench.common import CLAIMS, NotMeasured, Run, mean_rate, off_by
from bench.questions import compression, decoding, each_method, speed, tokens_per_pass
from lessons_lib import PromptLookup, generate
from lessons_lib.data import Question
from lessons_lib.decoding.text import encode
from lessons_lib.measure.clock import Ratio, Samples


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """A tiny float64 model and short answers."""
    offline(monkeypatch)


def test_a_mean_over_kinds_counts_every_kind_the_same():
    """10 tokens in 5 passes are 2; 30 in 10 and 20 in 10 are 2.5; all together would be 60 / 25 = 2.4."""
    ratio = mean_rate([[(10, 5)], [(30, 10), (20, 10)]])
    assert ratio.value == pytest.approx((2 + 2.5) / 2)
    assert ratio.low == pytest.approx((2 + 2) / 2) and ratio.high == pytest.approx((2 + 3) / 2)
    assert ratio.a.times == (1.0,) * 3 and ratio.b.times == pytest.approx((0.5, 1 / 3, 0.5))


@pytest.mark.parametrize("ratio, error", [
    ((0.9, 0.85, 1.05), (0.1, 0.0, 0.15)), ((1.2, 1.1, 1.3), (0.2, 0.1, 0.3)), ((0.8, 0.7, 0.9), (0.2, 0.1, 0.3)),
])  # fmt: skip
def test_an_error_is_how_far_a_ratio_is_from_one(ratio, error):
    found = off_by(Ratio(*ratio, Samples((1.0,)), Samples((1.0,))))
    assert (found.value, found.low, found.high) == pytest.approx(error)


def row(slow: float, fast: float, passes: int) -> dict:
    """A question's row: 13 tokens in `slow` and in `fast` seconds, half a second of each for the prompt."""

    def of(seconds, equal):
        counted = {"tokens": 13, "seconds": seconds, "forward_passes": passes, "input_tokens": 12, "prefill": 0.5}
        return counted | {"logit_gap": 0.0, "equal": equal}

    return {"question_id": 1, "category": "qa", "plain": of(slow, None), "fast": of(fast, True)}


def test_speed_compression_tau_and_the_prediction_of_rows_by_hand():
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    assert speed(rows, "plain", "fast").value == pytest.approx(6 / 2)
    assert decoding(rows, "plain") == [(12, 1.5), (12, 3.5)] and decoding(rows, "fast") == [(12, 0.5)] * 2
    assert tokens_per_pass(rows, "fast") == pytest.approx((12 + 12) / (3 + 5))
    rows[0]["plain"] |= {"forward_passes": 13}
    assert compression(rows, "plain", "fast").value == pytest.approx((26 / 10) / (26 / 19))
    # 8 steps of 24 / 8 tokens each
    assert questions.predicted_speed(rows, "fast", lambda fed: fed / 2) == pytest.approx(3 / 1.5)


def test_the_order_can_be_turned_and_a_text_that_differs_is_found():
    target, called = common.model().target(), []
    prompt = [1, 2, 3]
    target.eos = (questions.ours(target, prompt)[0][3],)  # held back: no text falls short of it
    right, stats = questions.ours(target, prompt)
    wrong = [*right[:5], (right[5] + 1) % 97, *right[6:]]

    def method(name, text):
        return lambda: (called.append(name), (text, stats))[1]

    methods = {"plain": method("a", right), "draft": method("b", wrong)}
    for backwards in (True, False):
        found = each_method(target, prompt, methods, backwards)
    a, b = found["plain"], found["draft"]
    assert called == ["b", "a", "a", "b"]
    assert a["equal"] is None and b["equal"] is False and a["logit_gap"] < 1e-9 < 1e-3 < b["logit_gap"]
    assert a["forward_passes"] == TOKENS and a["input_tokens"] == TOKENS - 1 and a["prefill"] == stats[0].t_total > 0


def test_a_text_is_compared_with_plain_decoding_on_its_own_target():
    """Eager and compiled texts differ in bf16, and say nothing about draft tokens."""
    target = common.model().target()
    eager = questions.ours(target, [1, 2, 3])[0]
    other = [*eager[:-1], (eager[-1] + 1) % 97]
    texts = {"ours": eager, "ours compiled": other, "loop": other, "theirs": eager, "plain theirs": other}
    methods = {name: lambda new=new: (new, []) for name, new in texts.items()}
    found = each_method(target, [1, 2, 3], methods, texts={"natural": eager})
    flags = {name: made["equal"] for name, made in found.items()}
    assert flags == {"ours": True, "ours compiled": None, "loop": True, "theirs": False, "plain theirs": None}


def test_a_later_turn_is_asked_after_the_plain_answer_to_the_one_before():
    target = common.eager()
    (_, first, answer), (row, second, _) = questions.conversation(target, Question(81, "roleplay", TURNS))
    assert first == encode(target, [{"role": "user", "content": TURNS[0]}])
    assert answer.ids == generate(target, first, max_new_tokens=TOKENS).ids
    before = [{"role": "user", "content": TURNS[0]}, {"role": "assistant", "content": answer.text}]
    assert second == encode(target, [*before, {"role": "user", "content": TURNS[1]}]) and row["turn"] == 2


def test_questions_with_short_answers_are_named_and_do_not_count(monkeypatch):
    asks(monkeypatch, ("writing", "writing"), "ab ab ab ab.")
    target = common.eager()
    texts = [generate(target, encode(target, q.messages), max_new_tokens=TOKENS).ids for q in questions.questions()]
    target.eos = (next(token for token in texts[0] if token not in texts[1]),)
    by = lambda ids: questions.with_and_without(Run(quick=True), ids, "lookup", lambda of: PromptLookup())  # noqa: E731
    rows = questions.asked(Run(quick=False), ["writing"], 2, by)
    assert rows[0]["short"] < TOKENS and "plain" not in rows[0] and rows[1]["lookup"]["equal"]
    assert len(questions.measured(rows, speed, "plain", "lookup").ratio.a.times) == 1
    with pytest.raises(NotMeasured, match=f"no answer reaches {TOKENS} tokens"):
        questions.measured(rows[:1], speed, "plain", "lookup")
    with pytest.raises(NotMeasured, match=f"no answer reaches {TOKENS} tokens"):
        questions.over_transformers(rows[:1], {})


def test_a_question_longer_than_the_context_is_named_and_its_claim_not_measured():
    with pytest.raises(NotMeasured, match="question 7: a prompt of 2048 tokens"):
        list(questions.conversation(common.eager(), Question(7, "qa", ("a" * 2048,))))


PAIR = ("plain", "lookup", "plain compiled", "lookup compiled")

WINDOWED = ("plain", "lookahead", "plain compiled", "lookahead compiled")

THEIRS = ("theirs", "ours", "loop", "ours compiled", "plain theirs", "plain compiled")


@pytest.mark.parametrize("name, categories, methods", [
    ("prompt-lookup/grounded/vs-plain", ("qa", "code"), PAIR),
    ("prompt-lookup/free/vs-plain", ("writing", "writing"), PAIR),
    ("prompt-lookup/vs-transformers", ("summarization", "code"), THEIRS),
    ("lookahead/code-lists/compression", ("lists", "code"), WINDOWED),
])  # fmt: skip
def test_a_claim_measures_each_question_with_each_method(monkeypatch, name, categories, methods):
    asks(monkeypatch, categories, "ab ab ab ab.")
    measured = CLAIMS[name].measure(Run(quick=False))
    rows = measured.facts["questions"]
    assert len(rows) == 2
    assert all(row[method]["tokens"] == TOKENS and row[method]["seconds"] > 0 for row in rows for method in methods)
    drafting = [method for method in methods if not method.startswith("plain")]
    assert measured.facts["parted"] == dict.fromkeys(drafting, 0)
    assert measured.facts["largest_logit_gap"] < 1e-9  # float64 is exact
    assert set(measured.facts["tokens_per_pass"]) == set(categories)
    assert measured.ratio.low <= measured.ratio.value <= measured.ratio.high
    assert f"compiled {measured.facts['compiled']['value']:.2f}: " in measured.note
    json.dumps(measured.facts)


def test_another_files_questions_are_asked_by_its_categories_on_the_eager_target_alone(monkeypatch, tmp_path):
    run = Run(quick=False, questions=another_file(monkeypatch, tmp_path))
    for measure, names in (
        (prompt_lookup.free, {"plain", "lookup"}),
        (prompt_lookup.vs_transformers, {"theirs", "ours", "loop", "plain theirs"}),
        (lookahead.code_lists, {"plain", "lookahead"}),
    ):
        measured = measure(run)
        rows = measured.facts["questions"]
        found = [(row["question_id"], row["turn"], row["category"]) for row in rows]
        assert found == [(81, 1, "roleplay"), (81, 2, "roleplay")]
        assert all({name for name, made in row.items() if isinstance(made, dict)} == names for row in rows)
        assert measured.facts["compiled"] is None


def test_tokens_a_step_make_a_compression_and_useful_steps_make_tokens_a_step():
    """3 tokens by the prefill and one step of 2 are 1.5 a pass; of 4 steps one commits 3, and two texts have one."""
    assert lookahead.compressed(2.0, 3) == pytest.approx(1.5) and lookahead.compressed(1.0, 128) == 128 / 128
    made = [{"tokens": 7, "forward_passes": 5, "useful": 1}, {"tokens": 5, "forward_passes": 5, "useful": 0}]
    assert lookahead.useful([{"a": of} for of in made], "a") == pytest.approx((1 / 8, 3))
    assert lookahead.useful([{"a": made[1]}], "a") == (0, 1)
