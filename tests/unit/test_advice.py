"""What a comparison recommends, and why: rows by hand, and techniques by what they are."""

from dataclasses import replace

import pytest
import torch

from lessons_lib import PromptLookup, compare
from lessons_lib.advice import EXACT, OTHER, PEER, Row, recommendation, recommended
from lessons_lib.decoding.probing import Divergence
from lessons_lib.measure.clock import Ratio, Samples
from lessons_lib.models import LanguageModel, tiny

PAIRS = Samples((1.0, 1.0))


def row(name: str, speedup: float = 1.0, spread: float = 0.1, tau: float = 1.0, **fields) -> Row:
    ratio = None if name == "plain" else Ratio(speedup, speedup - spread, speedup + spread, PAIRS, PAIRS)
    role = PEER if name == "transformers" else OTHER if name.startswith("W") else EXACT
    return replace(Row(name, 10, tau, 20.0, ratio, same=(True, True), memory=100e6, role=role), **fields)


def test_the_fastest_technique_that_keeps_the_tokens_is_recommended_with_its_reason():
    whole = Ratio(1.4, 1.3, 1.5, PAIRS, PAIRS)
    rows = [
        row("plain"),
        row("prompt lookup", 1.8, tau=2.25, whole=whole),
        row("lookahead", 1.2, tau=1.5),
        row("transformers", 3.0, whole=replace(whole, value=0.8)),
    ]
    said = (
        "Use prompt lookup: it decodes 1.80 times as fast (95%: 1.70 to 1.90), 1.40 times with the prompt's pass, with "
    )
    said += "the same greedy tokens, because each forward pass "
    assert recommended(rows).name == "prompt lookup"
    assert recommendation(rows) == said + (
        "yields 2.25 tokens instead of 1. transformers needs 1.25 times as long as plain for whole requests."
    )


def test_a_faster_format_is_named_for_those_who_accept_other_tokens():
    rows = [row("plain"), row("prompt lookup", 1.5, tau=2.0), row("W8A8", 2.5, memory=60e6), row("W4A16", 1.4)]
    said = recommendation(rows)
    assert said.startswith("Use prompt lookup") and "if other tokens are acceptable, W8A8 decodes 2.50 times" in said
    assert "(60 MB in memory instead of 100)" in said and "W4A16" not in said


@pytest.mark.parametrize("speedup, spread", [(1.05, 0.1), (1.04, 0.01)], ids=["interval contains 1", "small gain"])
def test_a_gain_that_is_uncertain_or_too_small_is_not_recommended(speedup, spread):
    rows = [row("plain"), row("prompt lookup", speedup, spread, tau=1.1), row("broken", problem="reads no trees")]
    said = recommendation(rows)
    assert said.startswith("Decode plainly") and "prompt lookup, yields 1.10 tokens per forward pass" in said


def test_one_run_on_one_prompt_recommends_nothing():
    alone = Samples((1.0,))
    rows = [row("plain"), replace(row("prompt lookup"), speedup=Ratio(2.0, 2.0, 2.0, alone, alone, runs=1))]
    assert recommendation(rows).startswith("Too little was measured")


def test_texts_that_differ_by_rounding_are_admitted():
    apart = row("prompt lookup", 1.5, same=(True, False), divergence=Divergence(7, 0.03, 0.03))
    said = recommendation([row("plain"), apart])
    assert "up to rounding (1 of 2 texts differ, by a logit gap of at most 0.03)" in said


def test_a_technique_without_draft_tokens_is_faster_by_its_passes():
    said = recommendation([row("plain"), row("compiled", 3.0)])
    assert said.startswith("Use compiled") and said.endswith("because its forward passes take less time.")


def test_without_another_technique_of_ours_the_first_one_stays():
    alone = "no other technique was measured with this model"
    assert recommendation([row("plain"), row("transformers", 3.0)]) == f"Decode plainly: {alone}."
    broken = [row("plain"), row("lookahead", problem="reads no trees")]
    assert recommendation(broken) == f"Decode plainly: {alone}; the table says why."


def test_what_a_technique_is_decides_whether_it_can_be_recommended():
    model = LanguageModel(tiny(2, torch.float32), None, "tiny", "cpu", torch.float32)
    techniques = {
        "plain": None,
        "lookup": PromptLookup(),
        "8 bits": model.target(weights="W8A16"),
        "another engine": lambda ids, new: made["plain"],
    }
    made = compare(model, [1, 2, 3, 1, 2, 3], {"plain": None}, max_new_tokens=4, repeats=1)
    rows = compare(model, [1, 2, 3, 1, 2, 3], techniques, max_new_tokens=4, repeats=1)
    assert [one.role for one in rows.rows] == [EXACT, EXACT, OTHER, PEER]
    assert rows.recommendation.startswith("Too little was measured")  # one run on one prompt


def test_another_models_tokens_are_not_recommended_as_the_same():
    one, other = (LanguageModel(tiny(2, torch.float32, seed=i), None, str(i), "cpu", torch.float32) for i in (0, 1))
    made = compare(one, [1, 2, 3], {"plain": None, "another model": other}, max_new_tokens=8, repeats=1)
    assert not made.rows[1].same[0] and made.rows[1].role == OTHER
    same = LanguageModel(one.network, None, "again", "cpu", torch.float32)
    assert compare(one, [1, 2, 3], {"plain": None, "again": same}, max_new_tokens=4, repeats=1).rows[1].role == EXACT


def test_nothing_measured_and_an_unknown_memory_are_no_errors():
    assert recommendation([]) == "Nothing was measured yet."
    said = recommendation([row("plain", memory=None), row("W8A16", 2.0)])
    assert "W8A16 decodes 2.00 times" in said and "bytes" not in said
