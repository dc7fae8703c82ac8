"""The claims of speculation on a tiny model and two questions, and another file's questions."""

import json

import pytest
from support.benches import TOKENS, TURNS, another_file, asks, offline

from bench import asking, speculation
from bench.registry import CLAIMS, Run
from lessons_lib import PromptLookup, generate
from lessons_lib.data import Question
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
    asks(monkeypatch, (*categories, *categories)[:2], "ab ab ab ab.")


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
    assert f"speed behind the prompt {facts['behind_prompt']:.2f}, predicted {facts['predicted']:.2f}" in measured.note
    assert f"predicted {facts['expected']:.2f}, by 1.64 tokens a step" in measured.note


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


def test_the_settings_spelled_out_are_the_defaults(bench):
    default, spelled = PromptLookup(), PromptLookup(**bench.LOOKUP)
    assert {name: getattr(default, name) for name in bench.LOOKUP} == bench.LOOKUP
    assert vars(default).keys() == vars(spelled).keys() and default.min_ngram == spelled.min_ngram


def test_the_compiled_target_shares_the_eager_ones_decoder_and_is_padded_by_its_widths(bench, monkeypatch):
    from bench.asking import repeatable_step

    asking, made, ran = bench.asking, [], []
    monkeypatch.setattr(asking, "CompiledTarget", lambda *given: made.append(given) or asking.eager())
    monkeypatch.setattr(asking, "repeatable_step", lambda *given: ran.append(given[2]) or repeatable_step(*given))
    bench.really_compiled.__wrapped__()
    ((decoder, tokenizer, eos, context, widths),) = made
    assert decoder is asking.eager().decoder and tokenizer is asking.eager().tokenizer and eos == asking.eager().eos
    assert (context, widths) == (asking.CONTEXT, asking.COMPILED) and tuple(ran) == asking.COMPILED


def test_another_files_questions_are_asked_by_its_categories_on_the_eager_target_alone(bench, monkeypatch, tmp_path):
    run = bench.Run(quick=False, questions=another_file(monkeypatch, tmp_path))
    for measure, names in (
        (bench.free, {"plain", "lookup"}),
        (bench.vs_transformers, {"theirs", "ours", "loop", "plain theirs"}),
        (bench.code_lists, {"plain", "lookahead"}),
    ):
        measured = measure(run)
        rows = measured.facts["questions"]
        said = [(row["question_id"], row["turn"], row["category"]) for row in rows]
        assert said == [(81, 1, "roleplay"), (81, 2, "roleplay")]
        assert all({name for name, made in row.items() if isinstance(made, dict)} == names for row in rows)
        assert set(measured.facts["tokens_per_forward"]) == {"roleplay"} and measured.facts["compiled"] is None


def test_a_later_turn_is_asked_behind_the_plain_answer_to_the_one_before(bench):
    target = bench.asking.eager()
    (_, first, answer), (row, second, _) = bench.asking.conversation(target, Question(81, "roleplay", TURNS))
    assert first == encode(target, [{"role": "user", "content": TURNS[0]}]) and len(answer.ids) == TOKENS
    assert answer.ids == generate(target, first, max_new_tokens=TOKENS).ids
    said = [{"role": "user", "content": TURNS[0]}, {"role": "assistant", "content": answer.text}]
    assert second == encode(target, [*said, {"role": "user", "content": TURNS[1]}]) and row["turn"] == 2


def test_questions_are_measured_backwards_in_turn(bench, monkeypatch):
    turned = []
    kept = lambda *given, backwards, **more: turned.append(backwards) or {}  # noqa: E731
    monkeypatch.setattr(bench.asking.by_question, "each_method", kept)
    ask(monkeypatch, "writing")
    bench.asked("a", bench.Run(quick=False), ["writing"], 2, lambda ids: {}, {})
    assert turned == [True, False]
