"""Lesson 11's widget: predicted speeds of the chosen rungs, by hand, and one figure in a batch run."""

from dataclasses import replace

import pytest

from lessons_lib import PromptLookup
from lessons_lib.decoding.ladder import Price
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.replay import Recording, replay, replay_draft
from lessons_lib.widgets.ladder import Parts, describe_ladder, draw_ladder, headline, rows, show_ladder

SLOW = Price(weights=100, entry=0, rate=100)  # a second a step
FAST = Price(weights=25, entry=0, rate=100, v={1: 1.0, 3: 2.0})  # a quarter, three rows a half
COPIED = Recording([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9])
FRESH = Recording([1, 2, 3], [4, 5, 6])


@pytest.fixture
def parts() -> Parts:
    lookup = {"lookup": lambda text, gamma: replay(text, PromptLookup(gamma, rule="transformers"))}
    return Parts({"slow": SLOW, "fast": FAST}, {"fresh": [FRESH], "copied": [COPIED]}, lookup, {"lookup": 0.0})


def test_without_guesses_a_token_takes_a_step(parts):
    found = rows(parts, "fast", "lookup", "copied", 0)
    assert [(row["rung"], row.get("below"), row["speed"]) for row in found] == [
        ("slow", None, pytest.approx(1)), ("fast", "slow", pytest.approx(4)),
    ]  # fmt: skip
    assert [row["rung"] for row in rows(parts, "slow", "lookup", "copied", 0)] == ["slow"]


def test_guesses_are_counted_on_the_kind_and_priced_by_the_width(parts):
    """2..7 are copied in two steps of two guesses, then 8 and 9 are no copy: one step with guesses, one without."""
    trace = replay(COPIED, PromptLookup(2, rule="transformers"))[1:]
    seconds = sum({1: 0.25, 2: 0.375, 3: 0.5}[step.forwarded] for step in trace)
    *_, guessed = rows(parts, "fast", "lookup", "copied", 2)
    assert guessed["below"] == "fast" and guessed["speed"] == pytest.approx(8 / seconds) and guessed["speed"] > 4.5
    *_, useless = rows(parts, "fast", "lookup", "fresh", 2)
    assert useless["speed"] == pytest.approx(4)


def test_a_guess_costs_what_it_costs(parts):
    dear = replace(parts, counts={"draft": lambda text, gamma: replay_draft([True, True, False], Constant(gamma))})
    free = rows(replace(dear, guess={"draft": 0.0}), "fast", "draft", "fresh", 2)[-1]["speed"]
    priced = rows(replace(dear, guess={"draft": 0.5}), "fast", "draft", "fresh", 2)[-1]["speed"]
    assert (free, priced) == pytest.approx((3 / 0.5, 3 / 1.5))


def test_headline_figure_and_words_say_the_same(parts):
    said = headline(parts, "fast", "lookup", "fresh", 2)
    assert said == "fresh: 4 tokens/s predicted, 4.00 times slow; 1.00 tokens per forward, a step of 3 rows costs 2.00"
    assert draw_ladder(parts, "fast", "lookup", "fresh", 2).get_title().replace("\n", "; ") == said
    assert said in describe_ladder(parts, "fast", "lookup", "fresh", 2)


def test_the_widget_shows_one_figure_in_a_batch_run(parts, shown):
    show_ladder(parts)
    assert len(shown) == 1 and "fast + lookup" in shown[0] and "copied: " in shown[0]
