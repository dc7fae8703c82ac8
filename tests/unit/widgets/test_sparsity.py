"""Lesson 12's widget: limits in numbers and words, and one figure in a batch run."""

from lessons_lib.measure.config import CONFIGS
from lessons_lib.widgets.sparsity import describe_limits, draw_limits, headline, show_limits

SMOL = CONFIGS["smollm2-135m"]


def test_the_headline_has_the_limits_of_the_shape():
    assert headline(SMOL, 50, 1) == (
        "50% zero in one row: 50% skipped by all; times as fast at most: 1.42 (MLP, known beforehand), "
        "1.25 (gate computed first), 1.11 (intermediate vector first), 1.65 (inputs of every product)"
    )
    assert "90% zero in each of 5 rows: 59% skipped by all; times as fast at most: 1.54 (MLP" in headline(SMOL, 90, 5)


def test_the_figure_marks_the_chosen_sparsity():
    ax = draw_limits(SMOL, 90, 5)
    assert ax.get_title().replace("\n", " ") == headline(SMOL, 90, 5)
    assert headline(SMOL, 90, 5) in describe_limits(SMOL, 90, 5)
    assert [list(line.get_xdata()) for line in ax.get_lines() if line.get_marker() == "o"] == [[0.9]] * 4


def test_the_widget_shows_one_figure_in_a_batch_run(shown):
    show_limits(SMOL)
    assert len(shown) == 1 and "50% zero" in shown[0]
