"""A sweep's figure: which panels, lines and axes it has."""

import pytest

from lessons_lib.figures.sweep import plot_sweep


def rows(**more):
    """Two claims at every gamma and dtype; the second has no prediction."""
    same = {"lesson": "06", "unit": "x"}
    return [
        same | {"gamma": gamma, "dtype": dtype, "claim": claim, "predicted": p, "measured": 2 * gamma} | more
        for gamma in (8, 2)
        for dtype in ("fp32", "bf16")
        for claim, p in (("speed", gamma), ("tokens", None))
    ]


def test_a_claim_is_a_panel_a_number_its_axis_and_another_parameter_a_line():
    figure = plot_sweep(rows(), ["dtype", "gamma"])
    speed, tokens = figure.axes
    assert (speed.get_title(), tokens.get_title(), speed.get_xlabel()) == ("speed", "tokens", "gamma")
    assert {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in speed.lines} == {
        f"{kind} dtype={dtype}": ([2, 8], y)
        for dtype in ("fp32", "bf16")
        for kind, y in (("predicted", [2, 8]), ("measured", [4, 16]))
    }
    assert [len(line.get_xdata()) for line in tokens.lines] == [0, 2, 0, 2]
    assert speed.get_ylim()[0] == 0 and "06 over gamma" in figure.get_label()


def test_names_are_ticks_that_no_line_joins():
    [speed, _] = plot_sweep(rows(gamma=4), ["dtype", "gamma"]).axes
    assert [tick.get_text() for tick in speed.get_xticklabels()] == ["fp32", "bf16"]
    assert {line.get_linestyle() for line in speed.lines} == {"None"}


@pytest.mark.parametrize(
    "given", [[], rows(gamma=4, dtype="fp32"), [{"lesson": "06", "gamma": 2, "dtype": "fp32"}]], ids=str
)
def test_where_nothing_changes_there_is_no_figure(given):
    assert plot_sweep(given, ["gamma", "dtype"]) is None


def test_a_claim_that_only_one_value_has_is_left_out():
    lone = rows()[:1]
    figure = plot_sweep([*rows(), lone[0] | {"claim": "at gamma 8"}], ["gamma"])
    assert [ax.get_title() for ax in figure.axes] == ["speed", "tokens"]
