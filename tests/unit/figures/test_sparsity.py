"""Lesson 12's figures: they show the rows' own numbers, and limits that are those of the formula."""

import pytest
import torch
from support.lines import points

from lessons_lib.figures.sparsity import ASIDE, plot_gains, plot_heads, plot_limits, plot_lines

GAINS = [
    {"label": "gather", "sparsity": 0.5, "samples": [0.6, 0.8, 0.7], "predicted": 2 / 3},
    {"label": "gather", "sparsity": 0.9, "samples": [2.0, 3.0, 2.5], "predicted": 10 / 3},
    {"label": "masked", "sparsity": 0.5, "samples": [1.0]},
]


def test_every_layer_and_head_has_its_own_cell():
    values = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    ax = plot_heads(values, "share")
    assert torch.allclose(torch.tensor(ax.images[0].get_array().tolist()), values)
    assert ax.images[0].get_clim() == (0, 1) and len(ax.get_xticks()) == 3


def test_lines_are_the_rows_in_colours_and_markers_of_their_own():
    rows = [{"label": label, "S": s, "NLL": s + i} for i, label in enumerate("ab") for s in (0.5, 0.9)]
    one, other = plot_lines(rows, "S", "NLL").get_lines()
    assert points(one) == [(0.5, 0.5), (0.9, 0.9)] and points(other) == [(0.5, 1.5), (0.9, 1.9)]
    assert one.get_color() != other.get_color() and one.get_marker() != other.get_marker()
    logarithmic = plot_lines(rows, "S", "NLL", "log")
    assert logarithmic.get_xscale() == "log"
    assert [label.get_text() for label in logarithmic.get_xticklabels()] == ["0.5", "0.9"]


def test_gains_show_median_quartiles_prediction_and_the_oracle():
    ax = plot_gains(GAINS)
    gather = ax.containers[0]
    half = ASIDE / 2  # two labels stand around the S that they share
    assert points(gather.lines[0]) == [(0.5 - half, 0.7), (0.9 - half, 2.5)]
    ends = [segment.tolist() for segment in gather.lines[2][0].get_segments()]
    assert ends[0] == [[0.5 - half, pytest.approx(0.65)], [0.5 - half, pytest.approx(0.75)]]
    assert points(ax.containers[1].lines[0]) == [(0.5 + half, 1.0)]
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    (predicted,), (oracle,) = dashed, [line for line in ax.get_lines() if line.get_linestyle() == ":"]
    for line, factor in ((predicted, 1 / 3), (oracle, 1)):  # between the rows, too: 1 is passed at S = 2/3, not before
        found = points(line)
        assert (found[0][0], found[-1][0]) == (0.5, 0.9) and len(found) > 50
        assert all(y == pytest.approx(factor / (1 - x)) for x, y in found)


def test_equal_predictions_show_dashes_of_each_colour():
    rows = [{"label": label, "sparsity": s, "samples": [1.0], "predicted": 1.0} for label in "abc" for s in (0.5, 0.9)]
    dashed = [line for line in plot_gains(rows).get_lines() if line.get_linestyle() == "--"]
    assert [line._unscaled_dash_pattern for line in dashed] == [(offset, (4, 8)) for offset in (0, 4, 8)]


def test_limits_shrink_with_the_rows_of_a_step():
    alone = plot_limits({"mlp": 0.6}, 0.5, 1).get_lines()
    drawn = dict(points(alone[0]))
    assert (drawn[0.0], drawn[0.5], drawn[0.9]) == (1.0, pytest.approx(1 / 0.7), pytest.approx(1 / 0.46))
    assert points(alone[1]) == [(0.5, pytest.approx(1 / 0.7))]
    five = plot_limits({"mlp": 0.6}, 0.5, 5).get_lines()
    assert points(five[1]) == [(0.5, pytest.approx(1 / (1 - 0.6 * 0.5**5)))]


def test_nothing_to_draw_is_refused():
    for plot in (lambda: plot_lines([], "S", "NLL"), lambda: plot_gains([])):
        with pytest.raises(ValueError, match="at least one row"):
            plot()
