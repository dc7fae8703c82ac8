"""Clocks and timelines: sync, warm-up, paired ratios and percentiles, on a fake clock (no test asserts a real time)."""

import gc
import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.measure import clock
from lessons_lib.measure.clock import (
    Ratio,
    Samples,
    Timeline,
    TokenClock,
    capacity,
    compare,
    makespan,
    median_ratio,
    percentiles,
    rate_ratio,
    timed,
)


class World:
    """A clock that only work and sync advance."""

    def __init__(self):
        self.time, self.syncs, self.runs = 0.0, [], 0

    def now(self):
        return self.time

    def sync(self, device):
        self.syncs.append(device)
        self.time += 1.0

    def work(self, *durations):
        """A callable whose i-th run takes the i-th duration, and the last one from then on."""

        def run():
            self.time += durations[min(self.runs, len(durations) - 1)]
            self.runs += 1

        return run


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(clock, "perf_counter", world.now)
    monkeypatch.setattr(torch.accelerator, "synchronize", world.sync)
    return world


def test_a_cpu_is_never_synced(world):
    samples = timed(world.work(2.0), "cpu", repeats=3)
    assert world.syncs == [] and samples.times == (2.0, 2.0, 2.0)


def test_a_device_is_synced_exactly_twice_per_timed_block(world):
    samples = timed(world.work(2.0), "cuda:0", repeats=3, warmup=1)
    assert world.syncs == ["cuda:0"] * 2 * (1 + 3)
    assert samples.times == (3.0, 3.0, 3.0)  # the work and the wait after it, not the wait before


@pytest.mark.parametrize(
    "durations, warm",
    [
        pytest.param((1.0,), 2, id="steady: two"),
        pytest.param((9.0, 1.0), 3, id="slow first run: three"),
        pytest.param((9.0, 3.0, 1.04, 1.0), 4, id="until two differ by less than 5 %"),
        pytest.param((1.0, 1.06, 1.0, 1.06, 1.0, 1.06, 1.0, 1.06, 1.0, 1.06, 1.0), 10, id="never steady: ten"),
    ],
)
def test_warm_up_ends_when_two_runs_agree(world, durations, warm):
    samples = timed(world.work(*durations), repeats=2)
    assert len(samples.times) == 2 and world.runs == warm + 2


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_collection_is_off_while_timing_and_then_as_before(was_on):
    seen = []
    (gc.enable if was_on else gc.disable)()
    try:
        timed(lambda: seen.append(gc.isenabled()), repeats=2)
        with pytest.raises(ZeroDivisionError):
            timed(lambda: 1 / 0)
        assert not any(seen) and gc.isenabled() == was_on
    finally:
        gc.enable()


def test_samples_give_median_range_and_quartiles():
    samples = Samples((4.0, 1.0, 3.0, 2.0, 5.0))
    assert (samples.median, samples.min, samples.max, samples.q1, samples.q3) == (3, 1, 5, 2, 4)


def test_samples_are_noisy_above_ten_percent_of_the_median():
    assert Samples((90.0, 95.0, 100.0, 106.0, 110.0)).noisy  # quartiles 11 apart
    assert not Samples((90.0, 96.0, 100.0, 105.0, 400.0)).noisy  # 9 apart: one outlier is no noise


def test_a_and_b_run_in_turn():
    order = []
    compare(lambda: order.append("a"), lambda: order.append("b"), repeats=3, warmup=1)
    assert "".join(order) == "ab" + "ababab"


def test_the_ratio_is_the_median_over_pairs():
    drift = Ratio.of(Samples((2.0, 20.0, 6.0)), Samples((1.0, 10.0, 2.0)))  # a slow phase of the machine cancels
    assert drift.value == pytest.approx(2) and drift.low == pytest.approx(2) and drift.high == pytest.approx(3)
    assert drift.samples == (2, 2, 3)


def test_identical_samples_have_ratio_one_within_the_interval():
    same = Samples((1.0, 1.2, 0.9, 1.1))
    ratio = Ratio.of(same, same)
    assert ratio.value == 1 and ratio.low <= 1 <= ratio.high and not ratio.differs
    assert "no difference seen" in str(ratio)


@pytest.mark.parametrize("count", [5, 8])
def test_swapping_inverts_value_and_interval(count):
    a = Samples((3.0, 2.5, 3.3, 2.9, 3.1, 2.0, 4.0, 3.5)[:count])
    b = Samples((1.0, 1.3, 0.8, 1.1, 1.2, 0.9, 1.05, 1.4)[:count])
    one, other = Ratio.of(a, b), Ratio.of(b, a)
    assert other.value == pytest.approx(1 / one.value)
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))
    assert one.differs and one.low < one.value < one.high


@pytest.mark.parametrize("count", [6, 7, 9, 21, 60])
def test_the_interval_covers_the_true_median_in_at_least_95_percent_of_samples(count):
    """Expected: exactly 1 - 2 P[Bin(n, 1/2) < k], with n = 6, 7, 9, 21, 60: 96.9, 98.4, 96.1, 97.3, 97.3%."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(2000):
        pairs = [(float(x), 1.0) for x in np.exp(rng.normal(0.5, 0.2, count))]
        _, low, high = median_ratio(pairs)
        hits += low <= np.exp(0.5) <= high
    assert hits >= 0.94 * 2000


def test_the_interval_leaves_out_as_many_ratios_as_it_may():
    """9 pairs: P[Bin(9, 1/2) < 2] = 10/512 and P[Bin(9, 1/2) < 3] = 46/512, so one at each end."""
    _, low, high = median_ratio([(float(x), 1.0) for x in (9, 1, 8, 2, 7, 3, 6, 4, 5)])
    assert (low, high) == pytest.approx((2, 8))


def test_any_number_of_pairs_will_do():
    """About 1.96 sqrt(n) / 2 ratios lie between the median and an end."""
    _, low, high = median_ratio([(float(x), 1.0) for x in range(1, 3001)])
    assert low == pytest.approx(1500 - 54, abs=2) and high == pytest.approx(1501 + 54, abs=2)


def test_few_pairs_have_a_range_and_no_95_percent_interval():
    a, one = Samples((2.0, 2.2, 2.1)), Samples((1.0,))
    three = Ratio.of(a, Samples((1.0, 1.0, 1.0)))
    assert three.runs == 3 and three.differs and str(three) == "2.10 (3 runs: 2.00 to 2.20)"
    assert three.cell("{:.1f}".format) == "2.0 to 2.2, 3 runs"
    assert str(Ratio.of(Samples((2.0,) * 6), Samples((1.0,) * 6))) == "2.00 (95%: 2.00 to 2.00)"
    for alone in (Ratio.of(Samples((2.0,)), one), rate_ratio([(10, 2.0)], [(10, 1.0)])):
        assert not alone.differs and str(alone) == "2.00 (one run)"


def test_pairs_must_match_and_exist():
    with pytest.raises(ValueError, match="shorter"):
        Ratio.of(Samples((1.0, 2.0)), Samples((1.0,)))
    with pytest.raises(ValueError, match="measure at least one"):
        median_ratio([])


def test_the_interval_and_the_speed_of_several_texts_by_hand():
    """10 tokens in 1 s and 10 in 9 s are 2 tokens/s, not the 5.56 of a mean of rates."""
    ratio = rate_ratio([(10, 1.0), (10, 9.0)], [(10, 1.0), (30, 1.0)])
    assert ratio.value == pytest.approx((40 / 2) / (20 / 10))
    assert ratio.words() == "2 runs: 1.00 to 27.00"  # too few for 95%: the lowest and the highest
    assert ratio.a.times == (0.1, 0.9) and ratio.b.times == pytest.approx((0.1, 1 / 30))
    with pytest.raises(ValueError, match="at least one, not 0 and 0"):
        rate_ratio([], [])


def test_six_texts_have_an_interval_within_the_lowest_and_the_highest_ratio():
    ratio = rate_ratio([(10, 1.0)] * 6, [(10, 1 / n) for n in range(1, 7)])
    assert ratio.words().startswith("95%") and 1 < ratio.low < ratio.value < ratio.high < 6


def test_several_functions_are_timed_in_turn_and_keep_their_keys(monkeypatch):
    order, ticks = [], iter(range(1000))
    monkeypatch.setattr(clock, "perf_counter", lambda: next(ticks))
    fns = {key: (lambda key=key: order.append(key)) for key in ("a", ("b", 2))}
    found = clock.in_turn(fns, repeats=3, warmup=1)
    assert order == ["a", ("b", 2)] * 4
    assert {key: len(samples.times) for key, samples in found.items()} == {"a": 3, ("b", 2): 3}
    assert found["a"].times == (1, 1, 1)


@pytest.mark.parametrize("warmup, runs", [("auto", 2), (3, 2), (0, 1)])
def test_a_quick_run_warms_up_once_at_most_and_times_once(world, monkeypatch, warmup, runs):
    monkeypatch.setenv("LESSONS_LIB_QUICK", "1")
    assert timed(world.work(2.0), repeats=20, warmup=warmup).times == (2.0,)
    assert world.runs == runs


def test_a_loop_of_a_lessons_own_turns_once_in_a_quick_run(monkeypatch):
    monkeypatch.delenv("LESSONS_LIB_QUICK", raising=False)
    assert [clock.runs(n) for n in (0, 1, 5)] == [0, 1, 5]
    monkeypatch.setenv("LESSONS_LIB_QUICK", "1")
    assert [clock.runs(n) for n in (0, 1, 5)] == [0, 1, 1]


FOUR = Timeline(0.0, (0.5, 0.6, 0.8, 1.0))


def test_the_worked_example():
    assert FOUR.ttft == 0.5
    assert FOUR.itl == pytest.approx([0.1, 0.2, 0.2])
    assert FOUR.tpot == pytest.approx(1 / 6)
    assert FOUR.e2e == 1.0 == pytest.approx(FOUR.ttft + 3 * FOUR.tpot)


def test_one_token_has_no_tpot():
    one = Timeline(0.0, (0.4,))
    assert math.isnan(one.tpot) and one.itl == [] and one.e2e == 0.4


def test_a_makespan_lasts_from_the_first_arrival_to_the_last_token():
    assert makespan([FOUR, Timeline(1.0, (1.5, 2.0)), Timeline(-1.0, ())]) == 3.0


def test_percentiles_are_interpolated_linearly_by_hand():
    assert percentiles([4.0, 1.0, 3.0, 2.0]) == pytest.approx({50: 2.5, 90: 3.7, 99: 3.97})
    assert percentiles([7.0], qs=(0, 100)) == {0: 7.0, 100: 7.0}


def test_percentiles_leave_out_requests_without_a_value_and_know_nothing_of_none():
    runs = [FOUR, Timeline(0.0, ()), Timeline(0.0, (1.5,))]
    assert percentiles([run.ttft for run in runs], qs=(50,)) == {50: 1.0}
    assert all(math.isnan(value) for value in percentiles([run.tpot for run in runs[1:]]).values())


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
