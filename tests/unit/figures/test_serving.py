"""The figures of lesson 05: cells, lines and fills are those of the logs and rows."""

import pytest

from lessons_lib.figures import legible
from lessons_lib.figures.serving import (
    plot_gains,
    plot_load,
    plot_memory,
    plot_progress,
    plot_slot_charts,
    plot_slots,
    plot_tails,
    plot_timeline_of_slots,
    slot_cells,
)
from lessons_lib.figures.style import color
from lessons_lib.serving.block_pool import CountingPool
from lessons_lib.serving.cost_model import Linear
from lessons_lib.serving.request import Request
from lessons_lib.serving.scheduler import Continuous, Scheduler, Static
from lessons_lib.serving.simulator import simulate


def run(policy, outputs=(3, 6, 2, 5), slots=4, blocks=100, block_size=1, **rest):
    made = [Request(i, 0.0, 4, n) for i, n in enumerate(outputs)]
    return simulate(made, Scheduler(CountingPool(blocks, block_size), slots, policy, **rest), Linear(step=1.0))


def test_the_four_request_figure_has_eight_held_slots_where_one_counts_them_by_hand():
    cells = slot_cells(run(Static()))
    held = [(slot, column) for slot, column, _, doing in cells if doing == "idle"]
    assert sorted(held) == [(0, 3), (0, 4), (0, 5), (2, 2), (2, 3), (2, 4), (2, 5), (3, 5)]
    assert sum(doing == "prefill" for *_, doing in cells) == 4 and sum(doing == "decode" for *_, doing in cells) == 12


def test_a_slot_that_continuous_batching_frees_is_held_by_nobody():
    cells = slot_cells(run(Continuous(), (3, 6, 2, 5, 4)))
    assert not any(doing == "idle" for *_, doing in cells)
    assert (2, 2, 4, "prefill") in cells  # the fifth request takes the third one's slot
    free = slot_cells(run(Static(), (1, 2, 2), slots=2))
    assert [cell for cell in free if cell[3] == "idle"] == [(0, 1, 0, "idle")]  # not in the next batch, which lacks one


@pytest.mark.parametrize("setting", [dict(slots=2, blocks=3, block_size=4, watermark=0), dict(slots=2, mixed=False)])
def test_a_slot_is_held_by_the_finished_alone(setting):
    """Neither the slot of a preempted request nor that of one that waits for another's prompt."""
    log = run(Continuous(), (5, 3, 3), **setting)
    working = [(slot, column) for column, step in enumerate(log.iterations) for slot in {s.slot for s in step.shares}]
    assert sorted(cell[:2] for cell in slot_cells(log)) == sorted(working)
    assert len(working) < 2 * len(log.iterations)  # there are slots where nobody worked


def test_prompts_are_hatched_held_slots_crossed_and_each_request_is_named_once():
    ax = plot_slots(run(Static()))
    hatches = [patch.get_hatch() for patch in ax.patches]
    assert (hatches.count("////"), hatches.count("xxxx"), hatches.count(None)) == (4, 8, 12)
    assert sorted(text.get_text() for text in ax.texts) == ["0", "1", "2", "3"]
    assert ax.get_xlim() == (0, 6) and ax.get_ylim() == (4, 0)
    colours = {patch.get_facecolor() for patch in ax.patches if patch.get_hatch() == "////"}
    assert len(colours) == 4


def test_numbers_of_requests_shrink_with_their_cells_down_to_a_size_that_can_be_read():
    sizes = lambda outputs: {t.get_fontsize() for t in plot_slots(run(Static(), outputs, blocks=999)).texts}  # noqa: E731
    assert sizes((3, 6, 2, 5)) == {9} and sizes((3, 200)) == {6}


def test_stepping_through_a_chart_keeps_its_room_and_its_colours():
    log = run(Static())
    some, every = plot_slots(log, until=2), plot_slots(log)
    assert len(some.patches) == 8 and some.get_xlim() == every.get_xlim()
    assert [p.get_facecolor() for p in some.patches[:4]] == [p.get_facecolor() for p in every.patches[:4]]


def test_charts_below_each_other_share_a_scale_and_say_what_they_waste():
    logs = {"static": run(Static(), (3, 6, 2, 5, 4, 3, 2)), "continuous": run(Continuous(), (3, 6, 2, 5, 4, 3, 2))}
    figure = plot_slot_charts(logs)
    assert [ax.get_title() for ax in figure.axes] == [
        "static: 10 iterations, 15 slots wasted", "continuous: 7 iterations, 3 slots wasted",
    ]  # fmt: skip
    assert [ax.get_xlim() for ax in figure.axes] == [(0, 10)] * 2
    assert figure.axes[1].get_position().y1 < figure.axes[0].get_position().y0


def test_the_queue_is_drawn_below_the_slots_up_to_the_same_iteration():
    figure = plot_timeline_of_slots(run(Continuous(), (3, 3, 2, 2, 1), slots=2), until=4, title="two slots")
    above, below = figure.axes
    assert above.get_title() == "two slots" and len(above.patches) == 8
    assert [bar.get_height() for bar in below.patches] == [3, 3, 3, 1]
    [key] = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["feeds its prompt", "decodes", "held"]
    assert above.get_xlim() == below.get_xlim() == (0, 6)


def test_load_has_a_line_per_policy_its_capacity_and_the_service_level():
    rows = [
        {"policy": p, "rate": rate, "wait": rate * k} for p, k in (("dynamic", 1), ("continuous", 2)) for rate in (2, 1)
    ]
    ax = plot_load(rows, "wait", limit=0.5, capacity={"continuous": 1.5})
    a, b, capacity, level = ax.get_lines()
    assert list(a.get_xdata()) == [1, 2] and list(b.get_ydata()) == [2, 4]
    assert list(capacity.get_xdata()) == [1.5, 1.5] and list(level.get_ydata()) == [0.5, 0.5]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["dynamic", "continuous", "service level"]
    assert a.get_color() == color("dynamic") and b.get_color() == capacity.get_color() == color("continuous")
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert len(plot_load(rows, "wait").get_lines()) == 2


def test_memory_is_drawn_as_shares_of_the_pool():
    reserved = run(Continuous(), (3, 3), slots=2, blocks=5, block_size=4, reserve="max")
    figure = plot_memory({"reserved": reserved, "again": reserved})
    owned, filled = figure.axes[0].collections
    top = lambda drawn: max(y for path in drawn.get_paths() for _, y in path.vertices)  # noqa: E731
    assert top(owned) == pytest.approx(4 / 5)  # two requests of 4 + 3 - 1 tokens, two blocks of 4 each
    assert top(filled) == pytest.approx(12 / 20)
    assert [ax.get_title() for ax in figure.axes] == ["reserved", "again"] and legible.problems(figure) == []


def test_a_tail_is_the_share_as_long_or_longer():
    [line] = plot_tails({"whole": [30, 10, 20, 40]}).get_lines()
    assert list(line.get_xdata()) == [10, 20, 30, 40] and list(line.get_ydata()) == [1, 0.75, 0.5, 0.25]


def test_progress_counts_the_tokens_of_all_requests_and_simulations_are_dashed():
    slow, quick = run(Static(), (2, 1), slots=1).requests, run(Static(), (2, 1), slots=2).requests
    ax = plot_progress({"static": slow, "continuous": quick}, {"static": quick})
    engine, simulated, peer = ax.get_lines()
    assert list(engine.get_xdata()) == [0, 1, 2, 3] and list(engine.get_ydata()) == [0, 1, 2, 3]
    assert list(simulated.get_xdata()) == [0, 1, 1, 2] and simulated.get_linestyle() == "--"
    assert simulated.get_color() == engine.get_color() == color("static")
    assert peer.get_color() == color("continuous")


def test_published_gains_are_crosses_at_their_place():
    known = [(32, "a", 1, None), (1536, "a", 2, None), (32, "b", 3, None), (1536, "b", 9, 8)]
    rows = [dict(zip(("longest", "system", "gain", "published_gain"), row, strict=True)) for row in known]
    a, b, cross = plot_gains(rows).get_lines()
    assert list(a.get_ydata()) == [1, 2] and list(b.get_ydata()) == [3, 9]
    assert (list(cross.get_xdata()), list(cross.get_ydata()), cross.get_marker()) == ([1], [8], "x")
