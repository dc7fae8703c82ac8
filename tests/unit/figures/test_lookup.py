"""The figures of lesson 07: every character has its place and its producer, every bar its count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from lessons_lib.figures.lookup import PRODUCERS, plot_guesses, plot_lookup, plot_spans
from lessons_lib.figures.spans import lay_out
from lessons_lib.figures.style import DPI

PIECES = st.lists(st.tuples(st.text("ab \n", min_size=1), st.sampled_from(list(PRODUCERS))))


def test_pieces_are_broken_at_line_ends_behind_spaces_and_only_then_within_a_word():
    assert lay_out([("ab\ncd", "model"), ("efg", "prompt")], 4) == [
        (0, 0, "ab", "model"), (1, 0, "cd", "model"), (2, 0, "efg", "prompt"),
    ]  # fmt: skip
    assert lay_out([("a bcd", "model"), ("efghij", "answer")], 4) == [
        (0, 0, "a ", "model"), (1, 0, "bcd", "model"), (2, 0, "efgh", "answer"), (3, 0, "ij", "answer"),
    ]  # fmt: skip


@given(PIECES, st.integers(1, 9))
def test_no_character_is_lost_or_laid_over_another(pieces, columns):
    spans = lay_out(pieces, columns)
    taken = [(line, column + i) for line, column, text, _ in spans for i in range(len(text))]
    assert len(taken) == len(set(taken)) and all(column < columns for _, column in taken)
    assert "".join(text for *_, text, _ in spans) == "".join(text for text, _ in pieces).replace("\n", "")


def test_each_span_has_its_producers_colour_and_copies_are_underlined():
    ax = plot_spans([("I say ", "model"), ("what you said", "prompt"), (" $x$", "answer")], columns=30)
    assert "".join(text.get_text() for text in ax.texts) == "Isaywhatyousaid$x$"
    assert [patch.get_facecolor()[:3] for patch in ax.patches] == [
        pytest.approx(to_rgb(PRODUCERS[who].shade)) for who in ("model", "prompt", "answer")
    ]
    assert [list(line.get_xdata()) for line in ax.get_lines()] == [[6, 19], [19, 23]]


def test_a_line_of_text_ends_where_its_background_ends_as_the_figure_is_stored():
    ax = plot_spans([("m" * 84, "prompt")])
    ax.figure.set_dpi(DPI)
    ax.figure.canvas.draw()
    box, written = ax.patches[0].get_window_extent(), [text.get_window_extent() for text in ax.texts]
    assert min(text.x0 for text in written) == pytest.approx(box.x0, abs=box.width / 84 / 4)
    assert max(text.x1 for text in written) == pytest.approx(box.x1, abs=box.width / 84 / 4)


def test_an_unknown_producer_and_an_empty_text_are_refused():
    with pytest.raises(ValueError, match="'nobody' is not known; choose from model"):
        plot_spans([("a", "nobody")])
    with pytest.raises(ValueError, match="at least one piece"):
        plot_spans([])


def test_counts_are_solid_and_predictions_dashed_in_the_order_of_the_guesses():
    rows = [{"kind": "code", "num_tokens": k, "tokens_per_forward": k + 1, "speed": k / 2} for k in (5, 1)]
    counted, predicted, _ = plot_guesses(rows).get_lines()
    assert list(counted.get_xdata()) == [1, 5] and list(counted.get_ydata()) == [2, 6]
    assert list(predicted.get_ydata()) == [0.5, 2.5] and predicted.get_linestyle() == "--"
    assert len(plot_guesses([{"kind": "code", "num_tokens": 1, "tokens_per_forward": 2}]).get_lines()) == 2


def test_the_bars_are_as_long_as_the_counts():
    rows = [
        {"kind": kind, "tokens_per_forward": t, "speed": s} for kind, t, s in [("code", 3.0, 2.0), ("free", 1.2, 0.8)]
    ]
    ax = plot_lookup(rows)
    assert [bar.get_width() for bar in ax.patches] == [3.0, 1.2, 2.0, 0.8]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["code", "free"]
    assert [text.get_text() for text in ax.texts] == ["3.00", "1.20", "2.00", "0.80"]
    assert all(text.get_bbox_patch().get_facecolor() == (1, 1, 1, 1) for text in ax.texts)  # hides the dotted line
