"""Lesson 07's widget: its bars are the counts of a replay."""

import pytest

from lessons_lib.decoding.replay import Recording
from lessons_lib.widgets.prompt_lookup import counts, describe_prompt_lookup, draw_prompt_lookup, show_prompt_lookup

COPY, FRESH = Recording([1, 2, 3, 4], [1, 2, 3, 4, 1]), Recording([1], [2, 3, 4])
V = {1: 1.0, 4: 2.0}


def test_kinds_are_counted_by_hand():
    copied, fresh = counts({"copy": [COPY], "free": [FRESH]}, V, max_ngram=2, num_tokens=10, rule="transformers")
    assert copied == {"kind": "copy", "tokens_per_forward": 4.0, "speed": 2.0}  # one forward of 1 + 3 rows
    assert fresh == {"kind": "free", "tokens_per_forward": 1.0, "speed": 1.0}


def test_several_recordings_of_a_kind_are_one_sum():
    [both] = counts({"both": [COPY, FRESH]}, V, max_ngram=2, num_tokens=10, rule="transformers")
    assert both == {"kind": "both", "tokens_per_forward": 6 / 3, "speed": 6 / 4}


def test_the_sliders_reach_the_figure_and_its_words():
    ax = draw_prompt_lookup({"copy": [COPY]}, V, 2, 1, "transformers")
    assert ax.patches[0].get_width() == pytest.approx(4 / 2)  # 1 + 1 and 1 + 1 tokens
    said = describe_prompt_lookup({"copy": [COPY]}, V, 2, 1, "transformers")
    assert "up to 2 tokens, 1 guesses, rule transformers" in said and "copy 2.00 and" in said


def test_the_widget_shows_one_figure_in_a_batch_run(shown):
    show_prompt_lookup({"copy": [COPY]}, V)
    assert len(shown) == 1 and "up to 3 tokens, 10 guesses" in shown[0]


def test_no_rule_keeps_silent_unless_asked():
    wrong = Recording([1, 2, 3], [1, 4, 1, 5, 1, 6, 1, 7])  # each copy behind a 1 is wrong
    loud, quiet = (counts({"k": [wrong]}, V, rule="recent", **rate) for rate in ({}, {"min_hit_rate": 0.9}))
    assert loud[0]["speed"] < quiet[0]["speed"] == 1.0
