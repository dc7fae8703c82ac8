"""The figures of lesson 06: heights, points, spans and their writers are those of the rows."""

import pytest
from matplotlib.colors import to_rgb

from lessons_lib.figures.assisted import (
    WRITERS,
    apart,
    placed,
    plot_distillation,
    plot_draft_length,
    plot_length_and_text,
    plot_overlap,
    plot_pays,
)

ROWS = [{"gamma": 1, "predicted": 1}]
PIECES = [("I say ", "own"), ("what it", "accepted"), (" no\n", "rejected"), (" said", "own")]


def test_accepted_and_owed_parts_stack_to_p():
    ax = plot_overlap([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], "abc")
    kept, owed, q = ([bar.get_height() for bar in bars] for bars in ax.containers)
    assert kept == [0.2, 0.3, 0.2] and owed == pytest.approx([0.3, 0, 0]) and q == [0.2, 0.5, 0.3]
    assert [bar.get_y() for bar in ax.containers[1]] == kept


def test_a_draft_length_has_its_prediction_its_count_and_what_was_timed():
    rows = [{"gamma": 2, "predicted": 1.5, "counted": 1.4, "samples": [1, 2, 3]}, {"gamma": 1, "predicted": 1.2}]
    ax = plot_draft_length(rows, chosen=2)
    predicted, counted, measured, *marks = ax.get_lines()
    assert list(predicted.get_xdata()) == [1, 2] and list(predicted.get_ydata()) == [1.2, 1.5]
    assert list(counted.get_ydata()) == [1.4] and list(measured.get_ydata()) == [2]
    assert [2, 2] in [list(mark.get_xdata()) for mark in marks]
    assert len(plot_draft_length([{"gamma": 1, "predicted": 1}]).get_lines()) == 2  # nothing counted, timed or chosen


def test_a_timed_run_that_wrote_another_text_is_a_cross_and_named():
    rows = [{"gamma": g, "predicted": 1.5, "samples": [float(g)], "strayed": g == 8} for g in (1, 4, 8)]
    ax = plot_draft_length(rows)
    drawn = {bars.get_label(): bars.lines[0] for bars in ax.containers}
    assert list(drawn["measured"].get_xdata()) == [1, 4] and drawn["measured"].get_marker() == "o"
    assert list(drawn["measured, another text"].get_xdata()) == [8]
    assert drawn["measured, another text"].get_marker() == "x"


def test_needed_acceptance_is_drawn_against_speed_and_what_cannot_pay_is_left_out():
    curves = {"here": [(0.5, 1.2), (0.25, 0.4)], "nowhere": [(0.5, 2.0)]}
    ax = plot_pays(curves, [("ours", 0.1, 0.7), ("other", 0.2, 0.8)])
    here, nowhere, point, _, rule = ax.get_lines()
    assert list(here.get_xdata()) == [4] and list(here.get_ydata()) == [0.4] and not len(nowhere.get_xdata())
    assert (*point.get_xdata(), *point.get_ydata()) == (10, 0.7) and ax.texts[0].get_text() == "ours"
    assert list(rule.get_xdata()) == [3, 3]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["here", "nowhere", "reached by real drafts"]


def test_labels_of_equal_points_stand_apart_and_others_where_they_belong():
    assert apart([0.1, 0.1, 0.12, 0.9], 0.05) == pytest.approx([0.1, 0.15, 0.2, 0.9]) and apart([], 1) == []


def test_the_curve_of_a_training_is_its_share_of_right_guesses():
    [line] = plot_distillation([{"step": 1, "agree": 0.1}, {"step": 9, "agree": 0.6}]).get_lines()
    assert list(line.get_xdata()) == [1, 9] and list(line.get_ydata()) == [0.1, 0.6]


def test_each_span_has_its_writers_colour_and_rejected_ones_are_struck_out():
    _, ax = plot_length_and_text(ROWS, 1, PIECES, columns=40).axes
    assert "".join(text.get_text() for text in ax.texts) == "Isaywhatitno↵said"
    shades = [pytest.approx(to_rgb(WRITERS[who].shade)) for _, who in PIECES]
    assert [patch.get_facecolor()[:3] for patch in ax.patches] == shades
    under, struck = ax.get_lines()
    assert list(under.get_xdata()) == [6, 13] and under.get_ydata()[0] > 0.9
    assert list(struck.get_xdata()) == [13, 17] and struck.get_ydata()[0] == 0.5


def test_a_rejected_line_end_does_not_break_the_line_and_an_accepted_one_does():
    assert [line for line, *_ in placed([("a\nb", "accepted"), ("\n", "rejected"), ("c", "own")], 9)] == [0, 1, 1, 1]


def test_curve_and_text_share_a_figure_without_overlap():
    figure = plot_length_and_text(ROWS, 1, PIECES, "code", columns=9)
    above, below = figure.axes
    assert above.get_title() == "code" and len(below.patches) == len(placed(PIECES, 9))
    assert below.get_position().y1 < above.get_position().y0


def test_an_unknown_writer_and_an_empty_text_are_refused():
    with pytest.raises(ValueError, match="'nobody' is not known; choose from accepted"):
        plot_length_and_text(ROWS, 1, [("a", "nobody")])
    with pytest.raises(ValueError, match="at least one piece"):
        plot_length_and_text(ROWS, 1, [])
