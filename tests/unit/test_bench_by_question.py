"""Questions measured one by one: methods in turn, a killed run that goes on, and sums by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.benches import TOKENS, offline

from bench import asking
from bench.by_question import (
    behind_prompt,
    compression,
    each,
    each_method,
    first_of,
    mean_rate,
    plain_of,
    predicted_speed,
    rate_ratio,
    speed,
    tokens_per_forward,
)
from lessons_lib.data import Question


@pytest.fixture
def tiny_bench(monkeypatch, tmp_path):
    """bench/asking.py with a tiny float64 model and short answers."""
    offline(monkeypatch, tmp_path)


def test_the_interval_and_the_speed_of_questions_by_hand():
    """10 tokens in 1 s and 10 in 9 s are 2 tokens/s, not the 5.56 that a mean of rates would say."""
    ratio = rate_ratio([(10, 1.0), (10, 9.0)], [(10, 1.0), (30, 1.0)])
    assert ratio.value == pytest.approx((40 / 2) / (20 / 10))
    assert ratio.low == pytest.approx(1) and ratio.high == pytest.approx(27)  # either question drawn twice
    assert ratio.a.times == (0.1, 0.9) and ratio.b.times == pytest.approx((0.1, 1 / 30))
    with pytest.raises(ValueError, match="at least one, not 0 and 0"):
        rate_ratio([], [])


def row(slow: float, fast: float, forwards: int) -> dict:
    """A question's row: 13 tokens in `slow` and in `fast` seconds, half a second of each for the prompt."""

    def of(seconds, equal):
        counted = {"tokens": 13, "seconds": seconds, "forwards": forwards, "prefill": 0.5}
        return counted | {"shortfall": 0.0, "equal": equal}

    return {"question_id": 1, "category": "qa", "plain": of(slow, None), "fast": of(fast, True)}


def test_speed_compression_and_tau_of_rows_by_hand():
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    assert speed(rows, "plain", "fast").value == pytest.approx(6 / 2)
    assert behind_prompt(rows, "plain", "fast") == pytest.approx(5 / 1)
    assert tokens_per_forward(rows, "fast") == pytest.approx((12 + 12) / (3 + 5))
    rows[0]["plain"] |= {"forwards": 13}
    assert compression(rows, "plain", "fast").value == pytest.approx((26 / 10) / (26 / 19))


@pytest.mark.usefixtures("tiny_bench")
def test_the_order_can_be_turned_and_a_text_that_parts_is_found():
    target, called = asking.model().target(), []
    prompt = [1, 2, 3]
    target.eos = (asking.ours(target, prompt)[0][3],)  # held back: no text falls short of it
    right, trace = asking.ours(target, prompt)
    wrong = [*right[:5], (right[5] + 1) % 97, *right[6:]]

    def method(name, text):
        return lambda: (called.append(name), (text, trace))[1]

    methods = {"plain": method("a", right), "guess": method("b", wrong)}
    for backwards in (True, False):
        found = each_method(target, prompt, methods, backwards)
    a, b = found["plain"], found["guess"]
    assert called == ["b", "a", "a", "b"]
    assert a["equal"] is None and b["equal"] is False and a["shortfall"] < 1e-9 < 1e-3 < b["shortfall"]
    assert a["forwards"] == TOKENS and a["forwarded"] == TOKENS - 1 and a["useful"] == 0
    assert a["prefill"] == trace[0].t_total > 0


@pytest.mark.usefixtures("tiny_bench")
def test_a_text_is_compared_with_plain_decoding_on_its_own_target():
    """Eager and compiled texts that part from each other, as they do in bf16, say nothing about guesses."""
    target = asking.model().target()
    eager = asking.ours(target, [1, 2, 3])[0]
    other = [*eager[:-1], (eager[-1] + 1) % 97]
    texts = {"plain": eager, "guess": eager, "plain compiled": other, "guess compiled": other}
    found = each_method(target, [1, 2, 3], {name: lambda new=new: (new, []) for name, new in texts.items()})
    assert {name: made["equal"] for name, made in found.items()} == {
        "plain": None, "guess": True, "plain compiled": None, "guess compiled": True,
    }  # fmt: skip
    texts = {"ours": eager, "ours compiled": other, "loop": other, "theirs": eager, "plain theirs": other}
    methods = {name: lambda new=new: (new, []) for name, new in texts.items()}
    found = each_method(target, [1, 2, 3], methods, like=asking.BESIDE.get, texts={"natural": eager})
    flags = {name: made["equal"] for name, made in found.items()}
    assert flags == {"ours": True, "ours compiled": None, "loop": True, "theirs": False, "plain theirs": None}


@pytest.mark.parametrize("name, plain", [
    ("lookup", "plain"), ("lookup compiled", "plain compiled"), ("plain", "plain"), ("int8 + draft", "int8"),
    ("compiled + adaptive lookup", "compiled"),
])  # fmt: skip
def test_a_methods_name_says_where_it_runs(name, plain):
    assert plain_of(name) == plain


@pytest.mark.usefixtures("tiny_bench")
def test_a_killed_run_goes_on_behind_the_questions_it_has_measured(tmp_path):
    own = [Question(i, "qa", ("?",)) for i in (1, 2, 3)]
    asked = []

    def measure(question, fails=()):
        asked.append(question.question_id)
        if question.question_id in fails:
            raise KeyboardInterrupt
        return [{"question_id": question.question_id, "turn": turn} for turn in (1, 2)]

    with pytest.raises(KeyboardInterrupt):
        each("a/b", own, lambda question: measure(question, fails=[2]), {"k": 3})
    (path,) = (tmp_path / "build" / "kept").iterdir()
    left = path.read_text()
    made = [{"question_id": i, "turn": turn} for i in (1, 2, 3) for turn in (1, 2)]
    assert each("a/b", own, measure, {"k": 3}) == made
    assert asked == [1, 2, 2, 3] and not path.exists()
    for text, questions, settings in [
        (left, own, {"k": 4}),  # other settings
        (left, [replace(own[0], turns=("!",)), *own[1:]], {"k": 3}),  # another text
        (left[:-3], own, {"k": 3}),  # killed while it wrote
    ]:
        path.write_text(text)
        asked.clear()
        each("a/b", questions, measure, settings)
        assert asked == [1, 2, 3]


@pytest.mark.usefixtures("tiny_bench")
def test_who_is_killed_while_it_writes_loses_one_question(monkeypatch):
    own, asked = [Question(i, "qa", ("?",)) for i in (1, 2, 3)], []
    measure = lambda question: asked.append(question.question_id) or [{"question_id": question.question_id}]  # noqa: E731
    write = Path.write_text

    def cut_short(path, text, *rest):
        write(path, text[:20] if asked == [1, 2] else text, *rest)
        if asked == [1, 2]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "write_text", cut_short)
        each("a/b", own, measure, {"k": 3})
    asked.clear()
    each("a/b", own, measure, {"k": 3})
    assert asked == [2, 3]


def test_a_quick_run_asks_fewer_questions():
    own = [Question(i, kind, ("?",)) for i, kind in enumerate(("qa", "code", "qa", "qa", "code"))]
    assert [q.question_id for q in first_of(own, ("code", "qa"), 2)] == [1, 4, 0, 2]


@pytest.mark.usefixtures("tiny_bench")
def test_the_compiled_targets_speed_is_over_the_compiled_plain_where_ours_is_compared_with():
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    for of in rows:
        of |= {"plain compiled": of["plain"] | {"seconds": 1.0}, "fast compiled": of["fast"] | {"seconds": 2.0}}
    kinds = {"qa": rows}
    assert asking.in_compiled(kinds, rows, "plain", "fast")["value"] == pytest.approx(0.5)
    theirs = [{"theirs": of["plain"], "fast compiled": of["fast compiled"]} for of in rows]
    assert asking.in_compiled({"qa": theirs}, theirs, "theirs", "fast")["value"] == pytest.approx(6 / 4)
    assert asking.in_compiled(kinds, [row(1.0, 1.0, 4)], "plain", "fast") is None


def test_a_mean_over_kinds_counts_every_kind_the_same():
    """10 tokens in 5 forwards are 2; 30 in 10 and 20 in 10 are 2.5; all together would be 60 / 25 = 2.4."""
    ratio = mean_rate([[(10, 5)], [(30, 10), (20, 10)]])
    assert ratio.value == pytest.approx((2 + 2.5) / 2)
    assert ratio.low == pytest.approx((2 + 2) / 2) and ratio.high == pytest.approx((2 + 3) / 2)
    assert ratio.a.times == (1.0,) * 3 and ratio.b.times == pytest.approx((0.5, 1 / 3, 0.5))
    with pytest.raises(ValueError, match="every kind needs a text"):
        mean_rate([[(10, 5)], []])


def test_a_speed_is_predicted_from_tokens_and_the_price_of_the_rows_that_a_step_fed():
    made = {"tokens": 9, "forwards": 5, "forwarded": 12, "shortfall": 0.0, "seconds": 1.0}  # four steps of three rows
    made |= {"prefill": 0.5, "equal": True}
    row = {"question_id": 1, "category": "qa", "plain": made, "lookup": made}
    assert predicted_speed([row, row], "lookup", lambda rows: rows / 2) == pytest.approx(2 / 1.5)
    assert "predicted" not in asking.measured([row], speed, "plain", "lookup", {}).facts
    assert asking.measured([row], speed, "plain", "lookup", {}, overhead=lambda rows: 4.0).facts["predicted"] == 0.5
