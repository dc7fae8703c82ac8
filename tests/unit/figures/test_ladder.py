"""Lesson 11's figures: bars from rung to rung, what does not count, and ladders as ratios."""

import pytest
from matplotlib.text import Text

from lessons_lib.figures.ladder import SHADES, plot_published, plot_quality, plot_waterfall

ROWS = [
    {"rung": "slow", "speed": 10.0, "predicted": 12.0},
    {"rung": "fast", "speed": 40.0, "below": "slow", "predicted": 50.0},
    {"rung": "rounded", "speed": 80.0, "below": "fast", "counts": False},
    {"rung": "guesses", "speed": 20.0, "below": "fast", "counts": True},
    {"rung": "other", "speed": 30.0, "peer": True},
]


def bars(ax):
    return [container.patches[0] for container in ax.containers]


def test_each_bar_reaches_from_the_rung_below_to_its_own_speed():
    ax = plot_waterfall(ROWS)
    left = ax.get_xlim()[0]
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars(ax)]
    expected = [(left, 10), (10, 40), (40, 80), (40, 20), (left, 30)]
    assert [pytest.approx(pair) for pair in expected] == ends
    assert [label.get_text() for label in ax.get_yticklabels()] == [row["rung"] for row in ROWS]


def test_what_was_measured_and_what_was_predicted_stand_in_columns_beside_the_bars():
    ax = plot_waterfall(ROWS)
    ax.figure.canvas.draw()
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in ax.texts]
    assert all(box.x0 > ax.bbox.x1 for _, box in boxes)
    heads = {name: next(box for text, box in boxes if text == name) for name in ("measured", "predicted")}
    column = lambda head: [text for text, box in boxes if abs(box.x1 - head.x1) < 3 and box.y1 < head.y0]  # noqa: E731
    assert column(heads["measured"]) == ["10", "40", "80", "20", "30"]
    assert column(heads["predicted"]) == ["12", "50"]
    factors = [text for text, _ in boxes if text.startswith("×")]
    assert factors == ["×4.00", "×2.00", "×0.50"]
    alone = plot_waterfall([{"rung": "slow", "speed": 10.0}])
    assert [text.get_text() for text in alone.texts] == ["10"]  # nothing to tell apart: no heads


def test_colours_and_hatches_say_gain_loss_peer_and_what_does_not_count():
    from matplotlib.colors import to_hex

    shades = [to_hex(bar.get_facecolor()).upper() for bar in bars(plot_waterfall(ROWS))]
    kinds = ["gain", "gain", "gain", "loss", "peer"]
    assert shades == [SHADES[kind].upper() for kind in kinds]
    assert [bool(bar.get_hatch()) for bar in bars(plot_waterfall(ROWS))] == [False, False, True, False, False]


def test_the_legend_explains_what_is_there_and_no_more():
    names = lambda rows: [text.get_text() for text in plot_waterfall(rows).figure.legends[0].get_texts()]  # noqa: E731
    assert names(ROWS) == [
        "gain on the rung below",
        "loss",
        "does not count: perplexity",
        "another engine",
        "predicted",
    ]
    assert names(ROWS[:2]) == ["gain on the rung below", "predicted"]


def test_predictions_are_drawn_where_there_are_some():
    lines = [line for line in plot_waterfall(ROWS).get_lines() if len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in lines] == [[12.0, 12.0], [50.0, 50.0]]
    assert [sum(line.get_ydata()) / 2 for line in lines] == [0, 1]


def test_quality_shades_what_gives_away_too_much():
    rows = [
        {"rung": "a", "speed": 40.0, "loss": 0.0, "bytes": 5e8},
        {"rung": "b", "speed": 90.0, "loss": 0.04, "bytes": 1e8},
    ]
    ax = plot_quality(rows, 0.01)
    (near, far) = ax.collections
    assert near.get_offsets().tolist() == [[0.0, 40.0]] and far.get_offsets().tolist() == [[4.0, 90.0]]
    assert near.get_sizes()[0] > far.get_sizes()[0]
    assert (near.get_facecolor() != far.get_facecolor()).any()
    assert ax.patches[0].get_x() == pytest.approx(1.0)
    assert [text.get_text() for text in ax.texts] == ["a", "b"]
    assert ax.get_title("right") == "area: bytes held, 100 to 500 MB"


def test_a_name_goes_below_its_dot_where_another_dot_stands_in_its_place():
    rows = [("left", 0.002, 100.0), ("right", 0.004, 101.0), ("above", 0.004, 150.0), ("far", 0.009, 100.0)]
    rows = [{"rung": name, "loss": loss, "speed": speed, "bytes": 1e8} for name, loss, speed in rows]
    ax = plot_quality(rows, 0.01)
    below = {text.get_text() for text in ax.texts if text.get_verticalalignment() == "top"}
    assert below == {"left"} and len(ax.texts) == 4


def test_published_ladders_are_ratios_to_their_first_rung():
    ax = plot_published({"theirs": [("eager", 25.5), ("compiled", 107.0)], "ours": [("generate", 16.0), ("x", 48.0)]})
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[1, pytest.approx(107 / 25.5)], [1, 3]]
    assert [text.get_text() for text in ax.texts] == ["compiled", "x"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["theirs; 1 is eager", "ours; 1 is generate"]


def test_a_name_stands_above_the_highest_dot_of_a_step_and_below_all_others():
    ax = plot_published(
        {"a": [("1", 1), ("x", 5), ("y", 6)], "b": [("1", 1), ("z", 4), ("y", 8)], "c": [("1", 1), ("z", 3)]}
    )
    where = {text.get_text(): (text.xy, text.get_horizontalalignment()) for text in ax.texts}
    assert where == {"x": ((1, 5), "right"), "z": ((1, 3), "left"), "y": ((2, 8), "right")}


def test_a_lower_name_of_the_last_step_stands_at_its_dots_height():
    ax = plot_published({"a": [("1", 1), ("x", 5), ("y", 9)], "b": [("1", 1), ("z", 4), ("w", 6)]})
    below = {text.get_text(): text.xyann[1] for text in ax.texts if text.get_horizontalalignment() == "left"}
    assert below == {"z": -13, "w": -3}


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        plot_waterfall([])
