"""Lesson 04's figures: the tiles that attention really visits, whose work is whose, and lines from formulas."""

import pytest
import torch

from lessons_lib.attention import Memory, tiled
from lessons_lib.figures.attention import (
    CROSSED,
    SKIPPED,
    WHOLE,
    partition,
    plot_context,
    plot_naive_and_tiled,
    plot_partition,
    plot_tiles,
    plot_traffic,
    tile_states,
)


def test_the_causal_diagonal_crosses_some_tiles_and_skips_those_above():
    assert tile_states(4, 4, 2, 2) == [[CROSSED, SKIPPED], [WHOLE, CROSSED]]
    assert tile_states(4, 4, 1, 1)[1] == [WHOLE, WHOLE, SKIPPED, SKIPPED]
    assert tile_states(2, 5, 2, 3) == [[WHOLE, CROSSED]]  # the last two queries of five tokens


@pytest.mark.parametrize("T, S, block_q, block_k", [(12, 12, 2, 3), (6, 18, 3, 3), (12, 6, 2, 2)])
def test_the_tiles_drawn_are_those_that_are_loaded(T, S, block_q, block_k):
    memory, x = Memory(), torch.zeros(1, S, 4)
    tiled(torch.zeros(1, T, 4), x, x, block_q, block_k, causal=True, memory=memory)
    visited = sum(state != SKIPPED for row in tile_states(T, S, block_q, block_k) for state in row)
    assert memory.read == T * 4 + visited * 2 * block_k * 4


def test_the_tile_in_fast_memory_is_outlined_with_its_queries_and_keys():
    ax = plot_tiles(8, 8, 2, 2, now=(2, 1))
    [outline] = [patch for patch in ax.patches if not patch.get_fill()]
    assert outline.get_xy() == (1, 2)
    queries, keys = ax.get_lines()
    assert list(queries.get_ydata()) == [2, 3] and list(keys.get_xdata()) == [1, 2]
    ax.figure.canvas.draw()
    assert keys.get_window_extent().y1 <= ax.figure.bbox.y1  # the stripe above the axes is not cut
    assert ax.images[0].get_array().tolist() == tile_states(8, 8, 2, 2)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "computed",
        "computed, partly masked",
        "skipped",
        "in fast memory",
        "its queries",
        "its keys",
    ]


def test_many_tiles_are_drawn_without_lines_between_them():
    assert plot_tiles(64, 64, 2, 2).collections and not plot_tiles(64, 64, 1, 1).collections


def test_naive_and_tiled_stand_beside_each_other():
    left, right = plot_naive_and_tiled().axes
    assert "written and read" in left.get_title() and "one tile at a time" in right.get_title()
    assert right.get_lines() and not left.get_lines()
    named = {text.get_text(): text.get_color() for text in right.texts}
    queries, keys = right.get_lines()
    assert named["its queries"] == queries.get_color() and named["its keys"] == keys.get_color()


def test_every_tile_has_one_worker_and_the_axis_that_is_split_decides():
    assert {worker for row in partition("head") for worker in row} == {0}
    rows = partition("queries")
    assert all(len(set(row)) == 1 for row in rows) and {row[0] for row in rows} == {0, 1, 2, 3}
    assert [list(column) for column in zip(*partition("keys"), strict=True)] == rows
    assert partition("decoding") == [[0, 0, 1, 1, 2, 2, 3, 3]]
    with pytest.raises(ValueError, match="kind='warps' is not known; choose one of: head, queries"):
        partition("warps")


def test_the_work_partition_shows_thread_blocks_and_warps():
    grids = [ax.images[0].get_array().tolist() for ax in plot_partition().axes]
    assert grids == [partition(kind) for kind in ("head", "queries", "decoding", "keys", "queries")]


def test_traffic_has_a_line_by_formula_dots_where_counted_and_the_floor():
    rows = [
        {"method": "tiled", "block": b, "predicted": 64 / b, "counted": 64 / b if b > 8 else None} for b in (32, 8, 16)
    ]
    ax = plot_traffic([*rows, {"method": "naive", "block": 8, "predicted": 50, "counted": 50}], least=1.5)
    line, dots, flat, dot, floor = ax.get_lines()
    assert list(line.get_xdata()) == [8, 16, 32] and list(line.get_ydata()) == [8, 4, 2]
    assert list(dots.get_xdata()) == [16, 32] and list(dot.get_ydata()) == [50]
    assert list(flat.get_xdata()) == [8, 16, 32] and list(flat.get_ydata()) == [50] * 3
    assert list(floor.get_ydata()) == [1.5, 1.5] and ax.get_yscale() == "log"


def test_context_is_drawn_on_two_logarithmic_axes_with_all_points_inside():
    rows = [{"method": "naive", "tokens": t, "samples": [t * t, t * t], "predicted": t * t / 2} for t in (256, 512)]
    ax = plot_context(rows, "MB")
    assert ax.get_xscale() == ax.get_yscale() == "log" and ax.get_ylabel() == "MB"
    assert ax.yaxis.get_major_formatter()(1000) == "1,000"
    assert 0 < ax.get_ylim()[0] < 256 * 256 / 2 and ax.get_ylim()[1] > 512 * 512
    assert [label.get_text() for label in ax.get_xticklabels()] == ["256", "512"]
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["naive"]
    assert "predicted" in legend.get_title().get_text()
    ax.figure.canvas.draw()
    assert legend.get_window_extent().y0 >= ax.get_window_extent().y1  # above the axes, so over no curve
    bracket = [{"method": "sdpa", "tokens": 9, "samples": [4.0], "low": 2.0, "high": 5.0}]
    low, high = plot_context(bracket, "s").get_ylim()
    assert low < 2 and high > 5
