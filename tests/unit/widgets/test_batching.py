"""Lesson 05's widget: what it runs, and what it says of each iteration."""

import pytest

from lessons_lib.widgets import batching
from lessons_lib.widgets.batching import (
    LOADS,
    POLICIES,
    SLOTS,
    SPREADS,
    STEPS,
    describe_batching,
    draw_batching,
    run,
)


def test_equal_lengths_at_once_leave_nothing_to_choose():
    assert {len(run(4, "at once", "all equal", policy).iterations) for policy in POLICIES} == {16 // 4 * 8}


def test_spread_lengths_make_continuous_batching_shorter_than_static():
    static, continuous = (run(4, "at once", "exponential", policy) for policy in ("static", "continuous"))
    assert len(continuous.iterations) < len(static.iterations)
    assert sum(r.output_length for r in static.requests) == sum(r.output_length for r in continuous.requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_setting_runs_to_its_end_and_the_last_step_can_be_reached(policy):
    for slots in SLOTS:
        for load in LOADS:
            for spread in SPREADS:
                log = run(slots, load, spread, policy)
                assert all(request.finished for request in log.requests) and len(log.iterations) <= STEPS[-1]


def test_the_words_count_what_the_chart_shows():
    log = run(2, "at once", "exponential", "static")
    ends = sorted(request.times[-1] for request in log.requests[:2])
    step = int(ends[0]) + 1  # the shorter of the first two has ended, its slot is held
    said = describe_batching(2, "at once", "exponential", "static", step)
    assert f"iteration {step}: request" in said
    assert "1 slots held by finished requests, 14 requests waiting, 1 of 16" in said
    figure = draw_batching(2, "at once", "exponential", "static", step)
    assert [patch.get_hatch() for patch in figure.axes[0].patches].count("xxxx") == 1
    assert figure.axes[0].get_title().startswith(f"static: {len(log.iterations)} iterations, ")


def test_a_step_behind_the_end_shows_the_end():
    said = describe_batching(8, "at once", "all equal", "continuous", 160)
    assert "iteration 16:" in said and "16 of 16 finished" in said


def test_a_batch_run_shows_static_and_continuous_and_no_widget(shown):
    batching.show_batching()
    assert [said.split()[0] for said in shown] == ["static", "continuous"]
    assert all("iteration 24:" in said for said in shown)
