"""The data figures: what stands on the axes must come from the rows."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from lessons_lib import figures
from lessons_lib.figures.latency import plot_break_even
from lessons_lib.figures.rows import plot_spread, spread
from lessons_lib.figures.style import COLORS, axes, color


def line(ax, label):
    return next(drawn for drawn in ax.get_lines() if drawn.get_label() == label)


def bars_of(ax):
    """(start, length) of every bar that was drawn, one after the other in one list."""
    return [number for bar in ax.patches if bar.get_width() for number in (bar.get_x(), bar.get_width())]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def notes(ax):
    return [text.get_text() for text in ax.texts]


@dataclass
class Row:
    method: str
    tokens: int
    samples: tuple
    predicted: float


def test_a_prediction_is_dashed_and_a_measurement_is_its_median_with_the_range():
    rows = [Row("cache", 20, (3.0, 1.0, 2.0), 1.5), Row("cache", 10, (1.0, 5.0, 1.0), 1.2)]
    ax = figures.plot_prediction(rows, "tokens", "time [ms]")
    dashed = next(drawn for drawn in ax.get_lines() if drawn.get_linestyle() == "--")
    assert list(dashed.get_xdata()) == [10, 20] and list(dashed.get_ydata()) == [1.2, 1.5]
    points, _, (bars,) = ax.containers[0].lines
    assert list(points.get_ydata()) == [1.0, 2.0]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[1.0, 5.0], [1.0, 3.0]]
    assert ax.get_xlabel() == "tokens" and ax.get_ylabel() == "time [ms]" and legend(ax) == ["cache"]


def test_a_spread_gives_back_the_medians_that_it_draws():
    ax = axes()
    assert plot_spread(ax, [1, 2], [(3.0, 1.0, 2.5), (1.0, 5.0, 1.0)]) == [2.5, 1.0]
    points, *_ = ax.containers[0].lines
    assert list(points.get_ydata()) == [2.5, 1.0]


def test_a_bracket_is_shaded_around_its_middle_and_a_missing_prediction_is_left_out():
    row = {"method": "decode", "batch": 1, "samples": [2.0]}
    assert not figures.plot_prediction([row], "batch", "s").collections[1:]
    ax = figures.plot_prediction([row | {"low": 1, "high": 3}], "batch", "s")
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == 1 and band[:, 1].max() == 3
    assert [list(drawn.get_ydata()) for drawn in ax.get_lines() if drawn.get_linestyle() == "--"] == [[2]]


@pytest.mark.parametrize(
    "predicted, title",
    [({}, ""), ({"predicted": 1}, "; dashed: predicted"), ({"low": 1, "high": 2}, "; dashed, shaded: predicted")],
)
def test_the_legend_of_a_prediction_names_what_was_drawn(predicted, title):
    ax = figures.plot_prediction([{"method": "decode", "x": 1, "samples": [2.0]} | predicted], "x", "y")
    assert ax.get_legend().get_title().get_text() == "dots: measured" + title


def test_a_legend_hides_what_lies_behind_it():
    ax = axes()
    ax.plot([0, 1], label="a line")
    assert ax.legend().get_frame().get_alpha() == 1


def test_methods_keep_their_colour_whatever_their_order():
    rows = [{"method": m, "x": 1, "samples": [1.0], "predicted": 1.0} for m in ("cache", "no-cache")]
    for order in (rows, rows[::-1]):
        ax = figures.plot_prediction(order, "x", "y")
        drawn = {c.get_label(): c.lines[0].get_color() for c in ax.containers}
        assert drawn == {"cache": COLORS["cache"], "no-cache": COLORS["no-cache"]}


def test_no_rows_and_an_unknown_method_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="at least one row"):
        figures.plot_prediction([], "x", "y")
    with pytest.raises(KeyError, match="no colour for 'warp'.*style.py"):
        color("warp")


def test_the_spread_reaches_from_the_median_to_minimum_and_maximum():
    assert spread([(1, 2, 6), (4,)]) == ([2, 4], [[1, 0], [4, 0]])


def hardware(matvec, matmul):
    return SimpleNamespace(
        read_bandwidth=32e9, copy_bandwidth=33e9, matvec_bandwidth=matvec, matmul_flops=matmul,
        ridge=lambda dtype: matmul[dtype] / matvec[dtype],
    )  # fmt: skip


def test_every_roof_bends_at_its_ridge_point():
    machine = hardware({"fp32": 25e9, "bf16": 20e9}, {"fp32": 75e9, "bf16": 200e9})
    ax = figures.plot_roofline(machine, [{"name": "decode", "intensity": 1.0, "rate": 18e9}])
    for dtype, ridge, top in (("fp32", 3, 75), ("bf16", 10, 200)):
        roof = next(drawn for drawn in ax.get_lines() if drawn.get_label().startswith(dtype))
        assert roof.get_xdata()[1] == ridge and list(roof.get_ydata()[1:]) == [top, top]
        assert roof.get_ydata()[0] == pytest.approx(roof.get_xdata()[0] * top / ridge)
    assert {"ridge 3.0", "ridge 10.0", "decode"} <= set(notes(ax))
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "FLOP per byte" in ax.get_xlabel() and "GFLOP/s" in ax.get_ylabel()


def test_a_roofline_needs_no_points_and_shows_all_it_is_given():
    machine = hardware({"bf16": 20e9}, {"bf16": 200e9})
    assert figures.plot_roofline(machine).get_xlim()[1] == 40
    far = {"name": "prefill", "intensity": 900.0, "rate": 1e11}
    left, right = figures.plot_roofline(machine, [far | {"intensity": 0.1}, far]).get_xlim()
    assert left < 0.1 and right > 900


def test_a_width_curve_is_relative_to_one_row():
    curve = {w: SimpleNamespace(median=t, times=(t, 2 * t)) for w, t in ((1, 4.0), (8, 6.0))}
    ax = figures.plot_width_curve({"bf16": curve})
    assert list(ax.containers[0].lines[0].get_ydata()) == [1.5, 2.25]  # medians of (1, 2) and (1.5, 3)
    assert list(ax.containers[0].lines[0].get_xdata()) == [1, 8]
    assert 2.25 < ax.get_ylim()[1] < 8  # the curve fills the picture, which the full price of 8 rows leaves


def test_the_legend_of_two_width_curves_lies_within_the_figure():
    curve = {w: SimpleNamespace(median=t, times=(t,)) for w, t in ((1, 4.0), (8, 6.0))}
    ax = figures.plot_width_curve({"decoder": curve, "compiled": curve})
    ax.figure.canvas.draw()
    legend, whole = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert whole.x0 <= legend.x0 and legend.x1 <= whole.x1 and legend.y1 <= whole.y1


def test_parts_are_stacked_and_their_sum_is_written_at_the_end():
    bars = {
        "eager": {"matrix products": 30.0, "attention": 6.0, "the rest": 0.5},
        "frozen": {"matrix products": 9.0, "attention": 1.0, "the rest": 0.2},
    }
    ax = figures.plot_parts(bars, "ms per decode step")
    assert bars_of(ax) == pytest.approx([0, 30, 30, 6, 36, 0.5, 0, 9, 9, 1, 10, 0.2])
    assert "36.5" in notes(ax) and "10.2" in notes(ax) and "0.5" not in notes(ax)  # too thin for its number
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(bars)
    assert legend(ax) == ["matrix products", "attention", "the rest"]
    assert ax.get_xlabel() == "ms per decode step"
    with pytest.raises(ValueError, match="at least one bar"):
        figures.plot_parts({}, "ms")


def test_a_timeline_begins_each_gap_where_the_last_token_arrived():
    ax = figures.plot_timeline({"chat": SimpleNamespace(ttft=0.5, itl=[0.1, 0.3])})
    assert bars_of(ax) == pytest.approx([0, 0.5, 0.5, 0.1, 0.6, 0.3])


@pytest.mark.parametrize(
    "startup, per_token, at",
    [(40.0, 0.03, 4000), (40.0, 0.05, None), (0.0, 0.03, None), (40.0, 0.04, None), (60.0, 0.03, None)],
)
def test_break_even_is_where_the_lines_meet_and_nowhere_else(startup, per_token, at):
    first = {"method": "eager", "startup": 0.0, "per_token": 0.04}
    other = {"method": "compiled", "startup": startup, "per_token": per_token}
    ax = plot_break_even([first, other], 5000)
    assert notes(ax) == ([f"{at:,} tokens"] if at else [])
    assert line(ax, "compiled").get_ydata()[1] == startup + 5000 * per_token


def test_numbers_of_neighbouring_crossings_stand_on_opposite_sides():
    known = (("eager", 0, 0.04), ("compiled", 60, 0.01), ("frozen", 70, 0.01))
    rows = [{"method": name, "startup": startup, "per_token": per_token} for name, startup, per_token in known]
    ax = plot_break_even(rows, 5000)
    assert [note.get_ha() for note in ax.texts if "tokens" in note.get_text()] == ["right", "left"]


def test_cache_memory_is_in_gib():
    rows = [{"model": "Llama-2-7B", "tokens": t, "bytes": t * 524_288} for t in (2048, 4096)]
    assert list(line(figures.plot_cache_memory(rows), "Llama-2-7B").get_ydata()) == [1, 2]
