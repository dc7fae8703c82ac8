"""Metrics of runs small enough to count by hand."""

import math

import pytest
from support.schedules import run

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.serving.metrics import goodput, latency, service_level, usage


def served(arrival, times, prompt=10):
    request = Sequence(0, arrival, prompt, len(times))
    request.times, request.finished = list(times), times[-1]
    return request


def test_latencies_of_two_requests_by_hand():
    seen = latency([served(0.0, [0.5, 0.6, 0.7, 1.0]), served(1.0, [3.0], prompt=5)])
    assert seen.makespan == 3 and seen.output_throughput == 5 / 3 and seen.total_throughput == 20 / 3
    assert seen.ttft == pytest.approx({50: 1.25, 90: 1.85, 99: 1.985})  # between 0.5 and 2
    assert seen.itl == pytest.approx({50: 0.1, 90: 0.26, 99: 0.296})  # of 0.1, 0.1 and 0.3
    assert seen.tpot[50] == pytest.approx(1 / 6)  # one token has no TPOT and is left out
    assert seen.e2e == pytest.approx({50: 1.5, 90: 1.9, 99: 1.99})
    assert math.isnan(seen.queueing[50])


def test_failed_requests_are_counted_apart():
    broken = served(0.0, [0.1, 0.2])
    broken.error = "the connection broke off"
    seen = latency([served(1.0, [2.0, 3.0]), broken, Sequence(1, 0, 1)])
    assert (seen.requests, seen.failed) == (3, 2) and seen.output_throughput == 1.0 and seen.ttft[50] == 1.0


def test_goodput_counts_who_kept_both_limits():
    first = [(0.2, 0.05), (0.9, 0.05), (0.3, 0.2), (0.2, 0.04)]
    made = [served(0.0, [ttft, ttft + tpot]) for ttft, tpot in first]
    made[1].times = [1.95, 2.0]
    assert goodput(made, ttft=0.5, tpot=0.1) == (pytest.approx(1.0), 0.5)
    made[0].error = "late"
    assert goodput(made, ttft=0.5, tpot=0.1) == (pytest.approx(0.5), 0.25)
    single = [served(0.0, [0.4]), served(0.0, [0.6])]  # no TPOT: judged by the first token alone
    assert goodput(single, ttft=0.5, tpot=0.1)[1] == 0.5


def test_the_service_level_is_a_multiple_of_the_unloaded_medians():
    alone = latency([served(0.0, [0.5, 0.6]), served(5.0, [5.5, 5.6])])
    assert service_level(alone) == pytest.approx((5.0, 0.3))


def test_blocks_by_hand():
    """Outputs 3 and 1 after prompts of 4, blocks of 4: the first needs a second block for its third pass's token."""
    log = run([Sequence(0, 0, 4, 3), Sequence(1, 0, 4, 1)])
    assert [i.used_blocks for i in log.iterations] == [2, 2, 2]
    assert [i.cached_tokens for i in log.iterations] == [8, 5, 6]
    assert usage(log).kv_tokens == pytest.approx((19 / 3) / 8)


def test_queueing_is_the_time_before_the_first_slot():
    log = run([Sequence(0, 0, 4, 3), Sequence(1, 0.5, 4, 1)], max_num_seqs=1)
    assert latency(log.requests).queueing[50] == 1.25  # of 0 and 2.5


def test_a_run_without_iterations_used_no_blocks():
    seen = usage(run([]))
    assert seen.preemptions == 0 and math.isnan(seen.kv_tokens)
    assert math.isnan(latency([]).makespan)
    assert all(math.isnan(value) for value in goodput([], ttft=1, tpot=1))


def test_a_run_in_which_no_time_passed_has_no_throughput():
    made = [served(0.0, [0.0])]
    seen, (rate, kept) = latency(made), goodput(made, ttft=1, tpot=1)
    assert seen.makespan == 0 and math.isnan(seen.output_throughput) and math.isnan(seen.total_throughput)
    assert math.isnan(rate) and kept == 1
