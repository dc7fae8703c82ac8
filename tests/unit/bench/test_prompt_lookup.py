"""The claims of prompt lookup and lookahead really run, on a tiny model and two questions."""

import json

import pytest
from support.benches import TOKENS, another_file, asks, offline

from bench import lookahead, prompt_lookup
from bench.common import CLAIMS, Run
from lessons_lib import PromptLookup

PAIR = ("plain", "lookup", "plain compiled", "lookup compiled")
WINDOWED = ("plain", "lookahead", "plain compiled", "lookahead compiled")
THEIRS = ("theirs", "ours", "loop", "ours compiled", "plain theirs", "plain compiled")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch, tmp_path):
    offline(monkeypatch, tmp_path)


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
    assert [row["question_id"] for row in rows] == [1, 2] or len(rows) == 2
    assert all(row[method]["tokens"] == TOKENS and row[method]["seconds"] > 0 for row in rows for method in methods)
    guessed = [method for method in methods if not method.startswith("plain")]
    assert measured.facts["parted"] == dict.fromkeys(guessed, 0)
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
        said = [(row["question_id"], row["turn"], row["category"]) for row in rows]
        assert said == [(81, 1, "roleplay"), (81, 2, "roleplay")]
        assert all({name for name, made in row.items() if isinstance(made, dict)} == names for row in rows)
        assert measured.facts["compiled"] is None


def test_the_settings_spelled_out_are_the_defaults():
    default = PromptLookup()
    assert {name: getattr(default, name) for name in prompt_lookup.LOOKUP} == prompt_lookup.LOOKUP


def test_tokens_a_step_make_a_compression_and_useful_steps_make_tokens_a_step():
    """3 tokens by the prefill and one step of 2 are 1.5 a pass; of 4 steps one commits 3, and two texts have one."""
    assert lookahead.compressed(2.0, 3) == pytest.approx(1.5) and lookahead.compressed(1.0, 128) == 128 / 128
    made = [{"tokens": 7, "forwards": 5, "useful": 1}, {"tokens": 5, "forwards": 5, "useful": 0}]
    assert lookahead.useful([{"a": of} for of in made], "a") == pytest.approx((1 / 8, 3))
    assert lookahead.useful([{"a": made[1]}], "a") == (0, 1)
