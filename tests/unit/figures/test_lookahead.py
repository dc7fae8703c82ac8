"""Lesson 08's figures: what became of each guess, the loop's own mask, and the line that must be exceeded."""

import pytest
from matplotlib.colors import to_hex

from lessons_lib.figures.lookahead import (
    LUCKY,
    SETTLED,
    WRONG,
    lookahead_mask,
    plot_branch_mask,
    plot_masks,
    plot_payoff,
    plot_pool_growth,
    plot_trajectory,
    trajectory_states,
)
from lessons_lib.figures.style import COLORS, WIDTH

ROUNDS = [[5, 5, 4, 5], [0, 2, 2, 2], [0, 1, 0, 6], [0, 1, 4, 6]]


def test_a_token_is_settled_only_if_all_before_it_are_right():
    assert trajectory_states(ROUNDS) == [
        [WRONG, WRONG, LUCKY, WRONG],
        [SETTLED, WRONG, WRONG, WRONG],
        [SETTLED, SETTLED, WRONG, LUCKY],
        [SETTLED] * 4,
    ]


def test_the_trajectory_shows_every_token_of_every_round_from_the_top():
    ax = plot_trajectory(ROUNDS, words=lambda token: f"<{token}>")
    cells = sorted((text.get_position()[1], text.get_position()[0], text.get_text()) for text in ax.texts)
    assert [text for *_, text in cells] == [f"<{token}>" for row in ROUNDS for token in row]
    assert ax.images[0].get_array().tolist() == trajectory_states(ROUNDS)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["guess", "1", "2", "3"]


def test_a_trajectory_is_as_wide_as_other_figures_however_many_its_tokens():
    assert plot_trajectory([[0] * 12, [1] * 12]).figure.get_figwidth() == WIDTH


def test_the_mask_is_the_one_that_the_loop_builds_for_w_3_n_3_and_one_n_gram():
    allow, names, offsets = lookahead_mask(3, 3, 1)
    order = [names.index(name) for name in ("anchor", "0,1", "0,2", "1,0", "1,1", "1,2", "A1", "A2")]
    assert ["".join(str(int(x)) for x in row) for row in allow[order][:, order]] == [
        "10000000", "11000000", "11100000", "10010000", "11001000", "11100100", "10000010", "10000011"
    ]  # fmt: skip
    assert [offsets[i] for i in order] == [0, 1, 2, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("W, N, G", [(5, 4, 2), (1, 3, 1), (8, 6, 5)])
def test_a_step_feeds_w_plus_g_times_n_minus_1_tokens_and_each_sees_one_per_position(W, N, G):
    allow, names, offsets = lookahead_mask(W, N, G)
    assert len(names) == len(set(names)) == len(offsets) == (W + G) * (N - 1)
    for row, own in zip(allow.tolist(), offsets, strict=True):
        assert sorted(offset for offset, seen in zip(offsets, row, strict=True) if seen) == list(range(own + 1))


def test_the_drawn_mask_marks_who_is_looked_at_and_where_tokens_stand():
    ax = plot_branch_mask(3, 3, 1)
    cells = ax.images[0].get_array()
    assert cells[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert cells[2].tolist() == [1, 2, 2, 0, 0, 0, 0, 0]  # the n-gram sees itself
    assert cells[7].tolist() == [1, 0, 0, 3, 3, 0, 0, 3]  # column 2: row 0 up to it, then itself
    assert [label.get_text() for label in ax.get_yticklabels()][:4] == ["anchor  +0", "A1  +1", "A2  +2", "0,1  +1"]


def test_a_wide_mask_is_drawn_without_names():
    assert not plot_branch_mask(8, 6, 5).get_yticklabels()


def test_both_masks_have_the_same_size():
    left, right = plot_masks(5, 4, 2).axes
    assert left.images[0].get_array().shape == right.images[0].get_array().shape == (21, 21)
    assert left.images[0].get_array()[4].tolist() == [1] * 5 + [0] * 16


def test_pool_growth_marks_the_steps_that_committed_more_than_one_token():
    rows = [{"prompt": "a", "step": s, "ngrams": 5 * s, "committed": 1 + s % 2} for s in range(4)]
    ax = plot_pool_growth(rows)
    assert list(ax.get_lines()[0].get_ydata()) == [0, 5, 10, 15]
    assert ax.collections[0].get_offsets().tolist() == [[1, 5], [3, 15]]


def test_the_payoff_line_is_the_width_curve():
    rows = [{"method": "jacobi", "label": "n=8", "width": 8, "tokens": 1.1}]
    rows += [{"method": "lookahead", "label": "5/4/5", "width": 25.5, "tokens": 1.6}]
    ax = plot_payoff(rows, {1: 1.0, 11: 2.0, 31: 3.0})
    (line,) = ax.get_lines()
    for w, v in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert v == pytest.approx(1 + (w - 1) / 10 if w <= 11 else 2 + (w - 11) / 20)
    assert [c.get_offsets().tolist() for c in ax.collections] == [[[8, 1.1]], [[25.5, 1.6]]]
    assert to_hex(ax.collections[1].get_facecolor()[0]).upper() == COLORS["lookahead"].upper()
    assert [text.get_text() for text in ax.texts] == ["n=8", "5/4/5"]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        plot_payoff([], {1: 1.0})
