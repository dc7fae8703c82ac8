"""Lesson 06's widget: what it counts, and who it says wrote each token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.measure.speculation import expected_tokens
from lessons_lib.widgets.draft_length import (
    GAMMAS,
    Drafted,
    describe_draft_length,
    draw_draft_length,
    show_draft_length,
    speeds,
    written,
)

TEXT = Drafted([1, 2, 3, 4, 5, 6], [2, 3, 9, 5, 6])  # one wrong guess: 9 for 4
DECODE = lambda ids: "".join("_abcdefghi"[token] for token in ids)  # noqa: E731


def test_who_wrote_what_by_hand():
    assert written(TEXT, 4) == [
        ([1], "own"), ([2, 3], "accepted"), ([9], "rejected"), ([4], "own"), ([5], "accepted"), ([6], "own"),
    ]  # fmt: skip
    assert written(TEXT, 1) == [
        ([1], "own"), ([2], "accepted"), ([3], "own"), ([9], "rejected"), ([4], "own"), ([5], "accepted"), ([6], "own"),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30), st.integers(1, 9))
def test_what_is_not_rejected_is_the_text_and_each_step_ends_with_the_targets_own(pairs, gamma):
    text = Drafted([0, *(token for token, _ in pairs)], [guess for _, guess in pairs])
    runs = written(text, gamma)
    assert sum((ids for ids, who in runs if who != "rejected"), []) == text.tokens
    assert runs[-1][1] == "own" and all(len(ids) <= gamma for ids, who in runs if who == "accepted")
    for (_, who), (_, after) in zip(runs, runs[1:], strict=False):
        assert after == "own" if who == "rejected" else who == "own" or after in ("own", "rejected")


def test_prediction_and_count_stand_side_by_side():
    rows = {row["gamma"]: row for row in speeds(TEXT, 0.5, None)}
    assert list(rows) == list(GAMMAS)
    assert rows[2]["predicted"] == pytest.approx(expected_tokens(0.8, 2) / 2)
    assert rows[2]["counted"] == pytest.approx(5 / (1 + 2 * 0.5 + 1 + 1 * 0.5))  # a step of 2 guesses, one of 1


def test_the_sliders_reach_the_figure_and_its_words():
    figure = draw_draft_length({"code": TEXT}, 0.1, None, DECODE, "code", 4)
    above, below = figure.axes
    assert "".join(text.get_text() for text in below.texts) == "abcidef"
    assert above.get_title() == "code: 80% of the guesses right"
    said = describe_draft_length({"code": TEXT}, 0.1, None, DECODE, "code", 4)
    assert "of 6 tokens 3 were drafted and accepted, 3 are the target's own, 1 guesses were rejected" in said


def test_the_widget_shows_one_figure_in_a_batch_run(shown):
    show_draft_length({"chat": TEXT, "code": TEXT}, 0.1, {1: 1.0, 5: 1.5}, DECODE, gamma=9)
    assert len(shown) == 1 and "The chat text, 8 tokens drafted per step" in shown[0]


def test_a_guess_for_every_later_token_is_needed():
    with pytest.raises(ValueError, match="a guess for each but the first are needed, not 3 tokens and 3 guesses"):
        Drafted([1, 2, 3], [1, 2, 3])
