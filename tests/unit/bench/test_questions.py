"""Ratios with intervals by hand; questions measured one by one, and a killed run that goes on."""

from dataclasses import replace

import pytest
from support.benches import TOKENS, TURNS, asks, offline

from bench import common, questions
from bench.common import Run, mean_rate, off_by
from bench.questions import after_prompt, compression, each, each_method, plain_of, speed, tokens_per_pass
from lessons_lib import PromptLookup, generate
from lessons_lib.data import Question
from lessons_lib.decoding.text import encode
from lessons_lib.measure.clock import Ratio, Samples


@pytest.fixture
def tiny_bench(monkeypatch, tmp_path):
    """A tiny float64 model and short answers."""
    offline(monkeypatch, tmp_path)


# ratios and their intervals


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
        counted = {"tokens": 13, "seconds": seconds, "forwards": passes, "forwarded": 12, "prefill": 0.5}
        return counted | {"logit_gap": 0.0, "equal": equal}

    return {"question_id": 1, "category": "qa", "plain": of(slow, None), "fast": of(fast, True)}


def test_speed_compression_tau_and_the_prediction_of_rows_by_hand():
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    assert speed(rows, "plain", "fast").value == pytest.approx(6 / 2)
    assert after_prompt(rows, "plain", "fast") == pytest.approx(5 / 1)
    assert tokens_per_pass(rows, "fast") == pytest.approx((12 + 12) / (3 + 5))
    rows[0]["plain"] |= {"forwards": 13}
    assert compression(rows, "plain", "fast").value == pytest.approx((26 / 10) / (26 / 19))
    # 8 steps of 24 / 8 tokens each
    assert questions.predicted_speed(rows, "fast", lambda fed: fed / 2) == pytest.approx(3 / 1.5)


@pytest.mark.usefixtures("tiny_bench")
def test_the_compiled_speed_is_over_compiled_plain_decoding_where_that_was_run():
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    for of in rows:
        of |= {"plain compiled": of["plain"] | {"seconds": 1.0}, "fast compiled": of["fast"] | {"seconds": 2.0}}
    assert questions.in_compiled({"qa": rows}, rows, "plain", "fast")["value"] == pytest.approx(0.5)
    theirs = [{"theirs": of["plain"], "fast compiled": of["fast compiled"]} for of in rows]
    assert questions.in_compiled({"qa": theirs}, theirs, "theirs", "fast")["value"] == pytest.approx(6 / 4)


# methods on a question


@pytest.mark.parametrize("name, plain", [
    ("lookup", "plain"), ("lookup compiled", "plain compiled"), ("plain", "plain"), ("W8A8 + draft", "W8A8"),
])  # fmt: skip
def test_a_methods_name_says_where_it_runs(name, plain):
    assert plain_of(name) == plain


@pytest.mark.usefixtures("tiny_bench")
def test_the_order_can_be_turned_and_a_text_that_differs_is_found():
    target, called = common.model().target(), []
    prompt = [1, 2, 3]
    target.eos = (questions.ours(target, prompt)[0][3],)  # held back: no text falls short of it
    right, stats = questions.ours(target, prompt)
    wrong = [*right[:5], (right[5] + 1) % 97, *right[6:]]

    def method(name, text):
        return lambda: (called.append(name), (text, stats))[1]

    methods = {"plain": method("a", right), "guess": method("b", wrong)}
    for backwards in (True, False):
        found = each_method(target, prompt, methods, backwards)
    a, b = found["plain"], found["guess"]
    assert called == ["b", "a", "a", "b"]
    assert a["equal"] is None and b["equal"] is False and a["logit_gap"] < 1e-9 < 1e-3 < b["logit_gap"]
    assert a["forwards"] == TOKENS and a["forwarded"] == TOKENS - 1 and a["prefill"] == stats[0].t_total > 0


@pytest.mark.usefixtures("tiny_bench")
def test_a_text_is_compared_with_plain_decoding_on_its_own_target():
    """Eager and compiled texts differ in bf16, and say nothing about guesses."""
    target = common.model().target()
    eager = questions.ours(target, [1, 2, 3])[0]
    other = [*eager[:-1], (eager[-1] + 1) % 97]
    texts = {"ours": eager, "ours compiled": other, "loop": other, "theirs": eager, "plain theirs": other}
    methods = {name: lambda new=new: (new, []) for name, new in texts.items()}
    found = each_method(target, [1, 2, 3], methods, like=questions.BESIDE.get, texts={"natural": eager})
    flags = {name: made["equal"] for name, made in found.items()}
    assert flags == {"ours": True, "ours compiled": None, "loop": True, "theirs": False, "plain theirs": None}


@pytest.mark.usefixtures("tiny_bench")
def test_a_later_turn_is_asked_after_the_plain_answer_to_the_one_before():
    target = common.eager()
    (_, first, answer), (row, second, _) = questions.conversation(target, Question(81, "roleplay", TURNS))
    assert first == encode(target, [{"role": "user", "content": TURNS[0]}])
    assert answer.ids == generate(target, first, max_new_tokens=TOKENS).ids
    said = [{"role": "user", "content": TURNS[0]}, {"role": "assistant", "content": answer.text}]
    assert second == encode(target, [*said, {"role": "user", "content": TURNS[1]}]) and row["turn"] == 2


@pytest.mark.usefixtures("tiny_bench")
def test_questions_with_short_answers_are_named_and_do_not_count(monkeypatch):
    asks(monkeypatch, ("writing", "writing"), "ab ab ab ab.")
    target = common.eager()
    texts = [generate(target, encode(target, q.messages), max_new_tokens=TOKENS).ids for q in questions.questions()]
    target.eos = (next(token for token in texts[0] if token not in texts[1]),)
    by = lambda ids: questions.with_and_without(Run(quick=True), ids, "lookup", lambda of: PromptLookup())  # noqa: E731
    rows = questions.asked("a", Run(quick=False), ["writing"], 2, by, {})
    assert rows[0]["short"] < TOKENS and "plain" not in rows[0] and rows[1]["lookup"]["equal"]
    assert len(questions.measured(rows, speed, "plain", "lookup", {}).ratio.a.times) == 1
    with pytest.raises(ValueError, match=f"no answer reaches {TOKENS} tokens"):
        questions.measured(rows[:1], speed, "plain", "lookup", {})


# runs that are killed


@pytest.mark.usefixtures("tiny_bench")
def test_a_killed_run_goes_on_after_the_questions_it_has_measured(tmp_path):
    own, asked = [Question(i, "qa", ("?",)) for i in (1, 2, 3)], []

    def measure(question, fails=()):
        asked.append(question.question_id)
        if question.question_id in fails:
            raise KeyboardInterrupt
        return [{"question_id": question.question_id, "turn": turn} for turn in (1, 2)]

    with pytest.raises(KeyboardInterrupt):
        each("a/b", own, lambda question: measure(question, fails=[2]), {"k": 3})
    (path,) = (tmp_path / "build" / "kept").iterdir()
    left = path.read_text()
    rows = each("a/b", own, measure, {"k": 3})
    assert asked == [1, 2, 2, 3] and [row["question_id"] for row in rows] == [1, 1, 2, 2, 3, 3] and not path.exists()
    for text, those, settings in [
        (left, own, {"k": 4}),  # other settings
        (left, [replace(own[0], turns=("!",)), *own[1:]], {"k": 3}),  # another text
        (left[:-3], own, {"k": 3}),  # killed while it wrote
    ]:
        path.write_text(text)
        asked.clear()
        each("a/b", those, measure, settings)
        assert asked == [1, 2, 3]
