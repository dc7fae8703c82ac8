"""Lesson 10's figures: they show the rows' own numbers."""

from itertools import combinations

import pytest
import torch
from matplotlib.text import Text
from support.lines import points

from lessons_lib.figures.quantization import (
    plot_channels,
    plot_dots,
    plot_duel,
    plot_groups,
    plot_levels,
    plot_rounding,
    plot_scaling,
    plot_steps,
)


def test_every_level_is_a_tick_on_its_formats_line():
    ax = plot_levels({"three": [-1, 0, 1], "five": [-1, -0.5, 0, 0.5, 1]})
    ticks = [[segment[0][0] for segment in lines.get_segments()] for lines in ax.collections[:2]]
    assert ticks == [[-1, 0, 1], [-1, -0.5, 0, 0.5, 1]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["three\n3 levels", "five\n5 levels"]
    bell = ax.collections[2].get_paths()[0].vertices
    middle, edge = (bell[abs(bell[:, 0] - x) < 1e-6][:, 1].min() for x in (0.0, 1.0))
    assert middle < edge and ax.yaxis_inverted()  # the bell stands upright


def test_the_histograms_are_of_values_and_of_errors():
    x = torch.linspace(-1, 1, 1001)
    values, errors = plot_rounding(x, x.round()).axes
    assert sum(bar.get_height() for bar in errors.patches) == 1001
    assert errors.patches[0].get_x() == pytest.approx(-0.5, abs=0.01)
    assert "rounded" in [text.get_text() for text in values.get_legend().get_texts()]


def test_a_rounding_without_error_can_be_drawn():
    _, errors = plot_rounding(torch.ones(10), torch.ones(10)).axes
    assert sum(bar.get_height() for bar in errors.patches) == 10


def test_dots_stand_on_their_labels_line():
    rows = [{"label": law, "method": m, "dB": i + 10 * j} for i, law in enumerate("ab") for j, m in enumerate("xy")]
    one, other = plot_dots(rows, "dB").get_lines()
    assert points(one) == [(0, 0), (1, 1)] and points(other) == [(10, 0), (11, 1)]
    assert one.get_marker() != other.get_marker()


def test_groups_are_marked_where_they_are():
    rows = [{"label": "int4", "group": g, "error": g / 10} for g in (16, 64, 576)]
    ax = plot_groups(rows, "error")
    assert list(ax.get_xticks()) == [16, 64, 576] and not len(ax.get_xticks(minor=True))
    assert points(ax.get_lines()[0]) == [(16, 1.6), (64, 6.4), (576, 57.6)]


def test_a_duel_has_a_line_of_equals_through_all_dots_ranges():
    rows = [{"label": "w", "a": 0.01, "b": 0.03}, {"label": "x", "a": 0.05, "b": 0.02}]
    ax = plot_duel(rows, "a", "b")
    assert points(ax.get_lines()[0]) == [(0.01, 0.03)] and ax.get_xlim() == ax.get_ylim()
    assert ax.get_lines()[-1].get_linestyle() == ":" and ax.get_xlim()[1] == pytest.approx(0.0525)


def test_channels_stand_in_the_order_of_the_first_names_values():
    ax = plot_channels({"x": torch.tensor([1.0, 9.0, 4.0]), "w": torch.tensor([30.0, 10.0, 20.0])}, "size")
    first, second = ax.get_lines()
    assert list(first.get_ydata()) == [9, 4, 1] and list(second.get_ydata()) == [10, 20, 30]


def test_scaling_says_the_bits_in_every_dot_above_all_lines():
    rows = [{"label": m, "bits": b, "size": 100 * b, "loss": 1 / b} for m in "mn" for b in (8, 4)]
    ax = plot_scaling(rows, "size", "loss")
    line, dots, *others = ax.get_lines()
    assert points(line) == points(dots) == [(400, 0.25), (800, 0.125)]
    assert [(text.get_text(), text.get_position()) for text in ax.texts[:2]] == [
        ("4", (400, 0.25)),
        ("8", (800, 0.125)),
    ]
    assert max(line.zorder, others[0].zorder) < dots.zorder < min(text.zorder for text in ax.texts)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["m", "n"]
    assert dots.get_marker() != others[1].get_marker()


def test_steps_carry_the_name_of_their_format():
    rows = [{"method": "eager", "format": f, "MB": mb, "samples": [3.0, 1.0, 2.0], "predicted": 2.5}
            for f, mb in (("int8", 1), ("fp32", 4))]  # fmt: skip
    ax = plot_steps(rows, "MB", "ms")
    assert [(text.get_text(), text.xy) for text in ax.texts] == [("int8", (1, 2.0)), ("fp32", (4, 2.0))]
    dashes = [line for line in ax.get_lines() if line.get_marker() == "_" and len(line.get_xdata()) == 2]
    assert points(dashes[0]) == [(1, 2.5), (4, 2.5)] and dashes[0].get_linestyle() == "None"  # no line joins formats
    assert ax.get_yscale() == "linear" and ax.get_ylim()[0] == 0
    bars = [segment.tolist() for segment in ax.containers[0].lines[2][0].get_segments()]
    assert bars == [[[1, 1.5], [1, 2.5]], [[4, 1.5], [4, 2.5]]]
    rows[0]["samples"] = [20.0]
    assert plot_steps(rows, "MB", "ms").get_yscale() == "log"


def test_no_label_of_a_step_lies_under_the_legend_or_under_another_label():
    measured = (("eager", "bf16", 269, 36), ("eager", "int8-weight-only", 135, 23), ("eager", "int8", 135, 28),
                ("eager", "int4", 76, 16), ("compiled", "bf16", 269, 12), ("compiled", "int4", 76, 7))  # fmt: skip
    rows = [{"method": how, "format": f, "MB": mb, "samples": [ms], "predicted": ms} for how, f, mb, ms in measured]
    ax = plot_steps(rows, "MB", "ms")
    ax.figure.canvas.draw()
    labels = [Text.get_window_extent(text) for text in ax.texts]
    boxes = [ax.get_legend().get_window_extent(), *labels]
    assert len(labels) == 6 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))


@pytest.mark.parametrize("plot", [lambda: plot_dots([], "dB"), lambda: plot_duel([], "a", "b"),
                                  lambda: plot_scaling([], "a", "b"), lambda: plot_groups([], "a")])  # fmt: skip
def test_nothing_to_draw_is_refused(plot):
    with pytest.raises(ValueError, match="at least one row"):
        plot()
