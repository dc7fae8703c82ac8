"""Lesson 08's widget: the step's size and its price, in numbers and in words."""

import pytest

from lessons_lib.widgets.lookahead import describe_lookahead, draw_lookahead, headline, show_lookahead, tokens_fed


@pytest.mark.parametrize("sizes, fed", [((5, 4, 5), 30), ((15, 5, 15), 120), ((7, 5, 7), 56), ((1, 3, 1), 4)])
def test_a_step_feeds_as_many_tokens_as_published(sizes, fed):
    assert tokens_fed(*sizes) == fed


def test_the_headline_prices_the_step_with_the_width_curve():
    assert headline(5, 4, 5, {1: 1.0, 31: 4.0}) == "30 tokens fed, at most 4 committed; pays above 3.90 tokens a step"
    assert headline(5, 4, 5) == "30 tokens fed, at most 4 committed; pays above 1.00 tokens a step"


def test_the_figure_is_the_mask_of_the_chosen_step():
    ax = draw_lookahead(None, 3, 3, 1)
    assert ax.images[0].get_array().shape == (8, 8) and "8 tokens fed" in ax.get_title()
    assert max(map(len, ax.get_title().split("\n"))) < 40  # no line is wider than the mask
    assert "W=3, N=3, G=1" in describe_lookahead(None, 3, 3, 1)


def test_the_widget_shows_one_figure_in_a_batch_run(shown):
    show_lookahead({1: 1.0, 31: 4.0})
    assert len(shown) == 1 and "21 tokens fed" in shown[0] and "pays above 3.00" in shown[0]
