"""The claims of speculation on a tiny model and two questions; resuming by question; sums by hand."""

import json
from dataclasses import replace

import asking
import pytest
import speculation
from by_question import (
    behind_prompt,
    compression,
    each,
    first_of,
    foretold,
    in_turn,
    mean_rate,
    plain_of,
    rate_ratio,
    speed,
    tokens_per_forward,
)
from registry import CLAIMS, Run
from support.benches import TOKENS, offline

from lessons_lib import PromptLookup, generate
from lessons_lib.data import Question
from lessons_lib.data import questions as read
from lessons_lib.decoding.generate import encode


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """bench/speculation.py with a tiny float64 model and short answers, and what it imports."""
    monkeypatch.setattr(speculation, "really_compiled", asking.compiled, raising=False)
    offline(monkeypatch, tmp_path)
    return speculation


PAIR = ("plain", "lookup", "plain compiled", "lookup compiled")
WINDOWED = ("plain", "lookahead", "plain compiled", "lookahead compiled")


def ask(monkeypatch, *categories) -> None:
    """Two questions, of these categories in turn."""
    kinds = (*categories, *categories)[:2]
    own = [Question(i, kind, (f"Repeat {i}: ab ab ab ab.",)) for i, kind in enumerate(kinds, 1)]
    monkeypatch.setattr(asking, "questions", lambda path=None: read(path) if path else own)


THEIRS = ("theirs", "ours", "loop", "ours compiled", "plain theirs", "plain compiled")


@pytest.mark.parametrize("name, categories, methods", [
    ("prompt-lookup/grounded/vs-plain", ("qa", "code"), PAIR),
    ("prompt-lookup/free/vs-plain", ("writing",), PAIR),
    ("prompt-lookup/vs-transformers", ("summarization", "code"), THEIRS),
    ("lookahead/code-lists/compression", ("lists", "code"), WINDOWED),
])  # fmt: skip
def test_a_claim_measures_each_question_with_each_method(bench, monkeypatch, name, categories, methods):
    ask(monkeypatch, *categories)
    measured = CLAIMS[name].measure(Run(quick=False))
    rows = measured.facts["questions"]
    assert {row["question_id"] for row in rows} == {1, 2} and len(rows) == 2
    assert all(row[method]["tokens"] == TOKENS and row[method]["seconds"] > 0 for row in rows for method in methods)
    guessed = [method for method in methods if not method.startswith("plain")]
    assert measured.facts["parted"] == dict.fromkeys(guessed, 0)
    assert measured.facts["largest_shortfall"] < 1e-9  # float64 is exact
    assert set(measured.facts["tokens_per_forward"]) == set(categories)
    assert len(measured.ratio.a.times) == len(measured.ratio.b.times) == 2
    assert measured.ratio.low <= measured.ratio.value <= measured.ratio.high
    beside = measured.facts["compiled"]
    assert f"compiled {beside['value']:.2f}: " in measured.note and measured.note.endswith("one run each")
    for facts in (measured.facts, beside):  # each kind's speed stands beside its tokens per forward
        for kind in categories:
            at = f"{kind} {facts['speed_by_category'][kind]:.2f} at {facts['tokens_per_forward'][kind]:.2f}"
            assert at in measured.note
    json.dumps(measured.facts)


def test_compression_is_counted_from_the_forwards_prefill_included(bench, monkeypatch):
    ask(monkeypatch, "code", "lists")
    measured = bench.code_lists(bench.Run(quick=True))
    rows = measured.facts["questions"]
    assert all(row["plain"]["forwards"] == row["plain"]["tokens"] for row in rows)
    assert measured.ratio.value == pytest.approx(2 * TOKENS / sum(row["lookahead"]["forwards"] for row in rows))
    assert measured.facts["unit"] == "forwards per token" and set(measured.facts["width_costs"]) == set(bench.WIDTHS)
    facts, rows = measured.facts, [row["lookahead"] for row in rows]
    share, several = facts["useful"]
    steps = sum(of["forwards"] for of in rows) - 2
    assert 0 <= share < 1 <= several <= bench.WINDOW["N"]  # two short texts of a tiny model may have no such step
    assert 1 + share * (several - 1) == pytest.approx(2 * (TOKENS - 1) / steps)  # tokens a step
    assert f"speed behind the prompt {facts['behind_prompt']:.2f}, foretold {facts['predicted']:.2f}" in measured.note
    assert f"foretold {facts['expected']:.2f}, by 1.64 tokens a step" in measured.note


def test_tokens_a_step_make_a_compression_and_useful_steps_make_tokens_a_step(bench):
    """3 tokens by the prefill and one step of 2 are 1.5 a forward; of 4 steps one commits 3, and two texts have one."""
    assert bench.compressed(2.0, 3) == pytest.approx(1.5) and bench.compressed(1.0, 128) == 128 / 128
    made = [{"tokens": 7, "forwards": 5, "useful": 1}, {"tokens": 5, "forwards": 5, "useful": 0}]
    assert bench.useful([{"a": of} for of in made], "a") == pytest.approx((1 / 8, 3))
    assert bench.useful([{"a": made[1]}], "a") == (0, 1)


def test_questions_with_short_answers_are_named_and_do_not_count(bench, monkeypatch):
    ask(monkeypatch, "writing")
    target, asked = bench.asking.eager(), bench.asking.questions()
    texts = [generate(target, encode(target, question.messages), max_new_tokens=TOKENS).ids for question in asked]
    target.eos = (next(token for token in texts[0] if token not in texts[1]),)
    rows = bench.free(bench.Run(quick=True)).facts["questions"]
    short = rows[0]["short"]
    assert rows[0] == {"question_id": 1, "turn": 1, "category": "writing", "short": short} and short < TOKENS
    measured = bench.measured(rows, bench.speed, "plain", "lookup", {})
    assert len(measured.ratio.a.times) == 1 and measured.facts["questions"] == rows
    apart = "of 1 texts part from plain decoding on their own target: lookup 0, lookup compiled 0"
    assert f"{apart}; shortfall at most 0 logits" in measured.note
    with pytest.raises(ValueError, match=f"no answer reaches {TOKENS} tokens"):
        bench.measured(rows[:1], bench.speed, "plain", "lookup", {})


def test_the_interval_and_the_speed_of_questions_by_hand(bench):
    """10 tokens in 1 s and 10 in 9 s are 2 tokens/s, not the 5.56 that a mean of rates would say."""
    ratio = rate_ratio([(10, 1.0), (10, 9.0)], [(10, 1.0), (30, 1.0)])
    assert ratio.value == pytest.approx((40 / 2) / (20 / 10))
    assert ratio.low == pytest.approx(1) and ratio.high == pytest.approx(27)  # either question drawn twice
    assert ratio.a.times == (0.1, 0.9) and ratio.b.times == pytest.approx((0.1, 1 / 30))
    with pytest.raises(ValueError, match="at least one, not 0 and 0"):
        rate_ratio([], [])


def row(slow: float, fast: float, forwards: int, tokens: int = 13) -> dict:
    def of(seconds, equal):
        counted = {"tokens": tokens, "seconds": seconds, "forwards": forwards, "prefill": 0.5}
        return counted | {"shortfall": 0.0, "equal": equal}

    return {"question_id": 1, "category": "qa", "plain": of(slow, None), "fast": of(fast, True)}


def test_speed_compression_and_tau_of_rows_by_hand(bench):
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    assert speed(rows, "plain", "fast").value == pytest.approx(6 / 2)
    assert behind_prompt(rows, "plain", "fast") == pytest.approx(5 / 1)
    assert tokens_per_forward(rows, "fast") == pytest.approx((12 + 12) / (3 + 5))
    rows[0]["plain"] |= {"forwards": 13}
    assert compression(rows, "plain", "fast").value == pytest.approx((26 / 10) / (26 / 19))


def test_the_order_can_be_turned_and_a_text_that_parts_is_found(bench):
    target, called = bench.asking.model().target(), []
    prompt = [1, 2, 3]
    target.eos = (bench.ours(target, prompt)[0][3],)  # held back: no text falls short of it
    right, trace = bench.ours(target, prompt)
    wrong = [*right[:5], (right[5] + 1) % 97, *right[6:]]

    def method(name, text):
        return lambda: (called.append(name), (text, trace))[1]

    methods = {"plain": method("a", right), "guess": method("b", wrong)}
    for backwards in (True, False):
        found = in_turn(target, prompt, methods, backwards)
    a, b = found["plain"], found["guess"]
    assert called == ["b", "a", "a", "b"]
    assert a["equal"] is None and b["equal"] is False and a["shortfall"] < 1e-9 < 1e-3 < b["shortfall"]
    assert a["forwards"] == TOKENS and a["forwarded"] == TOKENS - 1 and a["useful"] == 0
    assert a["prefill"] == trace[0].t_total > 0


def test_a_text_is_compared_with_plain_decoding_on_its_own_target(bench):
    """Eager and compiled texts that part from each other, as they do in bf16, say nothing about guesses."""
    target = bench.asking.model().target()
    eager = bench.ours(target, [1, 2, 3])[0]
    other = [*eager[:-1], (eager[-1] + 1) % 97]
    texts = {"plain": eager, "guess": eager, "plain compiled": other, "guess compiled": other}
    found = in_turn(target, [1, 2, 3], {name: lambda new=new: (new, []) for name, new in texts.items()})
    assert {name: made["equal"] for name, made in found.items()} == {
        "plain": None, "guess": True, "plain compiled": None, "guess compiled": True,
    }  # fmt: skip
    texts = {"ours": eager, "ours compiled": other, "loop": other, "theirs": eager, "plain theirs": other}
    methods = {name: lambda new=new: (new, []) for name, new in texts.items()}
    found = in_turn(target, [1, 2, 3], methods, like=bench.asking.BESIDE.get, texts={"natural": eager})
    flags = {name: made["equal"] for name, made in found.items()}
    assert flags == {"ours": True, "ours compiled": None, "loop": True, "theirs": False, "plain theirs": None}


@pytest.mark.parametrize("name, plain", [
    ("lookup", "plain"), ("lookup compiled", "plain compiled"), ("plain", "plain"), ("int8 + draft", "int8"),
    ("compiled + lookup of 4", "compiled"),
])  # fmt: skip
def test_a_methods_name_says_where_it_runs(name, plain):
    assert plain_of(name) == plain


def test_a_killed_run_goes_on_behind_the_questions_it_has_measured(bench, monkeypatch, tmp_path):
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


def test_the_settings_spelled_out_are_the_defaults(bench):
    default, spelled = PromptLookup(), PromptLookup(**bench.LOOKUP)
    assert {name: getattr(default, name) for name in bench.LOOKUP} == bench.LOOKUP
    assert vars(default).keys() == vars(spelled).keys() and default.min_ngram == spelled.min_ngram


def test_a_quick_run_asks_fewer_questions(bench):
    own = [Question(i, kind, ("?",)) for i, kind in enumerate(("qa", "code", "qa", "qa", "code"))]
    assert [q.question_id for q in first_of(own, ("code", "qa"), 2)] == [1, 4, 0, 2]


def test_the_compiled_targets_speed_is_over_the_compiled_plain_where_ours_is_compared_with(bench):
    rows = [row(2.0, 1.0, 4), row(4.0, 1.0, 6)]
    for of in rows:
        of |= {"plain compiled": of["plain"] | {"seconds": 1.0}, "fast compiled": of["fast"] | {"seconds": 2.0}}
    kinds = {"qa": rows}
    assert bench.asking.in_compiled(kinds, rows, "plain", "fast")["value"] == pytest.approx(0.5)
    theirs = [{"theirs": of["plain"], "fast compiled": of["fast compiled"]} for of in rows]
    assert bench.asking.in_compiled({"qa": theirs}, theirs, "theirs", "fast")["value"] == pytest.approx(6 / 4)
    assert bench.asking.in_compiled(kinds, [row(1.0, 1.0, 4)], "plain", "fast") is None


def test_a_mean_over_kinds_counts_every_kind_the_same(bench):
    """10 tokens in 5 forwards are 2; 30 in 10 and 20 in 10 are 2.5; all together would be 60 / 25 = 2.4."""
    ratio = mean_rate([[(10, 5)], [(30, 10), (20, 10)]])
    assert ratio.value == pytest.approx((2 + 2.5) / 2)
    assert ratio.low == pytest.approx((2 + 2) / 2) and ratio.high == pytest.approx((2 + 3) / 2)
    assert ratio.a.times == (1.0,) * 3 and ratio.b.times == pytest.approx((0.5, 1 / 3, 0.5))
    with pytest.raises(ValueError, match="every kind needs a text"):
        mean_rate([[(10, 5)], []])


def test_the_compiled_target_shares_the_eager_ones_decoder_and_is_padded_by_its_widths(bench, monkeypatch):
    from asking import repeatable_step

    asking, made, ran = bench.asking, [], []
    monkeypatch.setattr(asking, "CompiledTarget", lambda *given: made.append(given) or asking.eager())
    monkeypatch.setattr(asking, "repeatable_step", lambda *given: ran.append(given[2]) or repeatable_step(*given))
    bench.really_compiled.__wrapped__()
    ((decoder, tokenizer, eos, context, widths),) = made
    assert decoder is asking.eager().decoder and tokenizer is asking.eager().tokenizer and eos == asking.eager().eos
    assert (context, widths) == (asking.CONTEXT, asking.COMPILED) and tuple(ran) == asking.COMPILED


TURNS = ("Repeat: ab ab ab ab.", "Now cd cd cd.")


@pytest.fixture
def other(tmp_path):
    """A file with one question of two turns, of a category that ours do not have."""
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"question_id": 81, "category": "roleplay", "turns": TURNS}) + "\n")
    return path


def test_another_files_questions_are_asked_by_its_categories_on_the_eager_target_alone(bench, monkeypatch, other):
    monkeypatch.setattr(bench.asking, "compiled", lambda: pytest.fail("their prompts may not fit its caches"))
    for measure, names in (
        (bench.free, {"plain", "lookup"}),
        (bench.vs_transformers, {"theirs", "ours", "loop", "plain theirs"}),
        (bench.code_lists, {"plain", "lookahead"}),
    ):
        measured = measure(bench.Run(quick=False, questions=other))
        rows = measured.facts["questions"]
        said = [(row["question_id"], row["turn"], row["category"]) for row in rows]
        assert said == [(81, 1, "roleplay"), (81, 2, "roleplay")]
        assert all({name for name, made in row.items() if isinstance(made, dict)} == names for row in rows)
        assert set(measured.facts["tokens_per_forward"]) == {"roleplay"} and measured.facts["compiled"] is None


def test_a_later_turn_is_asked_behind_the_plain_answer_to_the_one_before(bench, other):
    target = bench.asking.eager()
    (_, first, answer), (row, second, _) = bench.asking.conversation(target, Question(81, "roleplay", TURNS))
    assert first == encode(target, [{"role": "user", "content": TURNS[0]}]) and len(answer.ids) == TOKENS
    assert answer.ids == generate(target, first, max_new_tokens=TOKENS).ids
    said = [{"role": "user", "content": TURNS[0]}, {"role": "assistant", "content": answer.text}]
    assert second == encode(target, [*said, {"role": "user", "content": TURNS[1]}]) and row["turn"] == 2


def test_questions_are_measured_backwards_in_turn(bench, monkeypatch):
    turned = []
    kept = lambda *given, backwards, **more: turned.append(backwards) or {}  # noqa: E731
    monkeypatch.setattr(bench.asking.by_question, "in_turn", kept)
    ask(monkeypatch, "writing")
    bench.asked("a", bench.Run(quick=False), ["writing"], 2, lambda ids: {}, {})
    assert turned == [True, False]


def test_a_speed_is_foretold_from_tokens_and_the_price_of_the_rows_that_a_step_fed(bench):
    made = {"tokens": 9, "forwards": 5, "forwarded": 12, "shortfall": 0.0, "seconds": 1.0}  # four steps of three rows
    made |= {"prefill": 0.5, "equal": True}
    row = {"question_id": 1, "category": "qa", "plain": made, "lookup": made}
    assert foretold([row, row], "lookup", lambda rows: rows / 2) == pytest.approx(2 / 1.5)
    assert "predicted" not in asking.measured([row], speed, "plain", "lookup", {}).facts
    assert asking.measured([row], speed, "plain", "lookup", {}, overhead=lambda rows: 4.0).facts["predicted"] == 0.5
