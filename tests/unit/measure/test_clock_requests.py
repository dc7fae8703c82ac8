"""Timelines of tokens: the worked examples of the definitions, throughput, percentiles, goodput."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.measure import clock
from lessons_lib.measure.clock import (
    Timeline,
    TokenClock,
    attainment,
    capacity,
    goodput,
    makespan,
    percentiles,
    throughput,
)

FOUR = Timeline(0.0, (0.5, 0.6, 0.8, 1.0))
GIVEN = [(0.2, 0.05), (0.9, 0.05), (0.3, 0.2), (0.2, 0.04)]  # (TTFT, TPOT)


def test_the_worked_example():
    assert FOUR.ttft == 0.5
    assert FOUR.itl == pytest.approx([0.1, 0.2, 0.2])
    assert FOUR.tpot == pytest.approx(1 / 6)
    assert FOUR.e2e == 1.0 == pytest.approx(FOUR.ttft + 3 * FOUR.tpot)


def test_times_count_from_the_start_of_the_request():
    late = Timeline(10.0, (10.5, 10.6, 10.8, 11.0))
    assert (late.ttft, late.e2e) == pytest.approx((0.5, 1.0))


def test_one_token_has_no_tpot():
    one = Timeline(0.0, (0.4,))
    assert math.isnan(one.tpot) and one.itl == [] and one.e2e == 0.4


def test_an_empty_output_has_no_ttft_and_counts_as_failed():
    empty = Timeline(0.0, ())
    assert empty.failed and math.isnan(empty.ttft) and math.isnan(empty.e2e)
    assert math.isnan(makespan([empty])) and math.isnan(throughput([empty]))


def test_a_makespan_lasts_from_the_first_arrival_to_the_last_token():
    assert makespan([FOUR, Timeline(1.0, (1.5, 2.0)), Timeline(-1.0, ())]) == 3.0


def test_throughput_is_all_new_tokens_over_the_makespan_waits_included():
    assert throughput([FOUR, Timeline(1.0, (1.5, 2.0)), Timeline(-1.0, ())]) == 6 / 3.0
    assert throughput([Timeline(10.0, (10.5, 12.0))]) == 1.0


def test_percentiles_are_interpolated_linearly_by_hand():
    assert percentiles([4.0, 1.0, 3.0, 2.0]) == pytest.approx({50: 2.5, 90: 3.7, 99: 3.97})
    assert percentiles([7.0], qs=(0, 100)) == {0: 7.0, 100: 7.0}


def test_percentiles_leave_out_requests_without_a_value_and_know_nothing_of_none():
    runs = [FOUR, Timeline(0.0, ()), Timeline(0.0, (1.5,))]
    assert percentiles([run.ttft for run in runs], qs=(50,)) == {50: 1.0}
    assert all(math.isnan(value) for value in percentiles([run.tpot for run in runs[1:]]).values())


@pytest.mark.parametrize("q", [-1, 101])
def test_a_percentile_beyond_all_values_is_refused(q):
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentiles([1.0], qs=(q,))


def test_a_burst_of_tokens_gives_gaps_of_zero_but_an_honest_tpot():
    burst = Timeline(0.0, (1.0, 1.0, 1.0, 2.0, 2.0))
    assert np.median(burst.itl) == 0 and burst.tpot == 0.25


def test_goodput_and_attainment_of_the_worked_example():
    runs = [Timeline(0.0, (ttft, ttft + tpot)) for ttft, tpot in GIVEN]
    assert attainment(runs, 0.5, 0.1) == 0.5
    assert goodput([*runs, Timeline(0.0, (1.0, 2.0))], 0.5, 0.1) == 2 / 2.0  # over the makespan, a late end included


def test_failed_requests_miss_and_single_tokens_are_judged_by_their_first():
    runs = [Timeline(0.0, ()), Timeline(0.0, (0.4,)), Timeline(0.0, (0.6,))]
    assert [clock.meets(run, 0.5, 0.1) for run in runs] == [False, True, False]


def test_capacity_is_the_highest_rate_that_serves_nine_in_ten():
    assert capacity({1: 1.0, 2: 0.95, 4: 0.90, 8: 0.5}) == 4
    assert capacity({8: 0.5}) == 0


def test_the_prompt_that_a_streamer_is_given_first_is_no_token(monkeypatch):
    ticks = iter((0.0, 0.5, 0.6, 0.8, 1.0))
    monkeypatch.setattr("lessons_lib.measure.clock.perf_counter", lambda: next(ticks))
    clock = TokenClock()
    for value in ("prompt", "a", "b", "c", "d"):
        clock.put(value)
    assert clock.timeline() == FOUR


def test_generate_streams_one_time_per_new_token():
    model = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=20)
    )
    clock = TokenClock()
    prompt = torch.ones(1, 5, dtype=torch.long)
    model.generate(prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False, streamer=clock, pad_token_id=0)
    assert len(clock.timeline().times) == 6
