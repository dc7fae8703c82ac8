"""Lesson 04's widget: the numbers of its headline, in both loop orders, and the tiles below."""

import pytest

from lessons_lib.widgets.attention import describe_attention, draw_attention, headline, show_attention, tiling

TWO, ONE = "queries outside (2)", "keys outside (1)"


def test_the_numbers_of_a_tiling_by_hand():
    # 4 tokens of 2 channels, blocks of 2, causal: 44 elements (test_traffic), naive 96, 2 bytes each
    assert tiling(2, 2, 4, 2, TWO).moved == 2 * 44 and tiling(2, 2, 4, 2, TWO).naive == 2 * 96
    assert tiling(2, 2, 4, 2, ONE).moved == 2 * (52 + 24)
    assert tiling(2, 2, 4, 2, ONE).held == 2 * (8 + 8 + 4)


def test_larger_blocks_move_less_and_keep_more():
    small, large = tiling(16, 16, 4096, 64, TWO), tiling(128, 128, 4096, 64, TWO)
    assert large.moved < small.moved < small.naive and large.held > small.held
    assert tiling(64, 256, 4096, 64, TWO).moved > tiling(256, 64, 4096, 64, TWO).moved  # queries count, not keys


def test_the_headline_is_over_the_tiles_and_in_the_alt_text():
    ax = draw_attention(64, 128, 512, 64, TWO)
    assert ax.get_title() == headline(64, 128, 512, 64, TWO)
    assert "a tile keeps 64 KiB" in ax.get_title() and "% of naive" in ax.get_title()
    assert len(ax.images[0].get_array()) == 8 and len(ax.images[0].get_array()[0]) == 4
    assert headline(64, 128, 512, 64, TWO) in describe_attention(64, 128, 512, 64, TWO)


def test_the_widget_shows_one_figure_in_a_batch_run(shown):
    show_attention(32, 64, 2048)
    assert len(shown) == 1 and "2,048 tokens in tiles of 32 queries and 64 keys, queries outside" in shown[0]


def test_a_size_that_its_slider_lacks_is_refused():
    with pytest.raises(ValueError, match="cannot start at 48"):
        show_attention(48)
