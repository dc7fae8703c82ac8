"""Lesson 09's widget: the best tree within the sliders' limits, what it promises and costs."""

import pytest

from lessons_lib.decoding.proposers.medusa import best_tree, speed_by_size
from lessons_lib.widgets.medusa import SIZES, describe_medusa, draw_medusa, headline, show_medusa, within

BY_HAND = [[0.6, 0.2, 0.1], [0.5, 0.2]]
COSTS = {1: 1.0, 11: 2.0}


def test_limits_cut_heads_and_their_favourites():
    assert within(BY_HAND, 1, 2) == [[0.6], [0.5]] and within(BY_HAND, 3, 1) == [[0.6, 0.2, 0.1]]


def test_the_headline_is_the_predicted_speed_over_the_width_curve():
    said = headline(BY_HAND, best_tree(BY_HAND, 4), COSTS, 0.1)
    assert said == "4 nodes, 2 deep: 2.22 tokens a step expected, v(5) = 1.40, speed 1.48 of plain"
    assert 2.22 / 1.5 == pytest.approx(speed_by_size(BY_HAND, COSTS, 0.1, 4)[-1])
    assert headline(BY_HAND, best_tree(BY_HAND, 1)).endswith("v(2) = 1.00, speed 1.60 of plain")


def test_without_nodes_it_is_plain_decoding_whatever_the_heads_cost():
    said = headline(BY_HAND, best_tree(BY_HAND, 0), COSTS, 0.5)
    assert said == "0 nodes, 0 deep: 1.00 tokens a step expected, v(1) = 1.00, speed 1.00 of plain"


def test_the_figure_is_the_tree_within_the_limits_and_its_mask():
    figure = draw_medusa(BY_HAND, COSTS, 0.0, nodes=4, favourites=2, heads=2)
    tree, mask = figure.axes
    assert [text.get_text() for text in tree.texts] == ["anchor", "0", "1", "0,0", "0,1"]
    assert mask.images[0].get_array().shape == (5, 5) and "2.22 tokens a step" in figure.get_suptitle()
    tree, _ = draw_medusa(BY_HAND, COSTS, 0.0, nodes=4, favourites=1, heads=2).axes
    assert [text.get_text() for text in tree.texts] == ["anchor", "0", "0,0"]
    tree, _ = draw_medusa(BY_HAND, COSTS, 0.0, nodes=4, favourites=3, heads=1).axes
    assert [text.get_text() for text in tree.texts] == ["anchor", "0", "1", "2"]


def test_the_words_say_how_many_guesses_each_head_has():
    said = describe_medusa(BY_HAND, COSTS, 0.1, nodes=4, favourites=3, heads=2)
    assert "4 nodes, 2 deep: 2.22 tokens" in said and "Guesses: 2 of head 1, 2 of head 2." in said
    assert "Guesses: none." in describe_medusa(BY_HAND, COSTS, 0.1, nodes=0, favourites=3, heads=2)


def test_the_widget_shows_one_figure_in_a_batch_run_and_starts_within_what_there_is(shown):
    show_medusa(BY_HAND, COSTS, nodes=5)
    assert len(shown) == 1 and "at most 5 nodes from the 3 favourites of 2 heads" in shown[0]
    show_medusa(BY_HAND, nodes=11)
    assert "at most 10 nodes" in shown[1] and SIZES[0] == 0 and SIZES[-1] == 64
