"""Queueing theory as the oracle: one slot, one forward per request, so that a request is a customer with a service."""

import math
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.scheduler import Continuous, Scheduler, Static
from lessons_lib.serving.simulator import simulate
from lessons_lib.serving.workload import Poisson

COUNT, WARM_UP = 40_000, 4_000
MILLISECONDS = LinearCost(
    prefill_token=1e-3
)  # a prompt token is a millisecond of service, and one output token ends it


def waits(rate, service):
    """(waiting times, times in system) after the warm-up, of Poisson arrivals with services drawn from service(rng)."""
    rng = Random(1)
    times = Poisson(rate).times(COUNT, rng)
    made = [Sequence(i, time, max(1, round(1000 * service(rng)))) for i, time in enumerate(times)]
    log = simulate(made, Scheduler(BlockPool(10**9, 1), max_num_seqs=1), MILLISECONDS)
    late = log.requests[WARM_UP:]
    return [r.admitted - r.arrival for r in late], sorted(r.finished - r.arrival for r in late)


def in_system(requests):
    """Mean number of requests between the first arrival and the last departure, counted by walking through both."""
    events = sorted([(r.arrival, 1) for r in requests] + [(r.finished, -1) for r in requests])
    area, count = 0.0, 0
    for (time, change), (following, _) in pairwise(events):
        count += change
        area += count * (following - time)
    return area / (events[-1][0] - events[0][0])


def test_exponential_service_at_half_load_waits_as_long_as_it_serves():
    queued, inside = waits(0.5, lambda rng: rng.expovariate(1))
    assert fmean(queued) == pytest.approx(1, rel=0.05) and fmean(inside) == pytest.approx(2, rel=0.03)
    assert inside[int(0.95 * len(inside))] == pytest.approx(-2 * math.log(0.05), rel=0.04)  # 5.99


def test_fixed_service_at_80_percent_load_waits_half_as_long_as_exponential():
    fixed, _ = waits(0.8, lambda rng: 1.0)
    exponential, inside = waits(0.8, lambda rng: rng.expovariate(1))
    assert fmean(fixed) == pytest.approx(2, rel=0.08) and fmean(exponential) == pytest.approx(4, rel=0.12)
    assert inside[int(0.95 * len(inside))] == pytest.approx(-5 * math.log(0.05), rel=0.12)  # 14.98


def test_two_slots_share_one_queue():
    """M/M/2 at 3/4 load, Erlang C: W_q = 1.2857 services. A service is so many forwards of one token, 20 on average."""
    rng = Random(2)
    times = Poisson(1.5 / 20).times(30_000, rng)
    made = [Sequence(i, time, 1, max(1, round(rng.expovariate(1 / 20) + 0.5))) for i, time in enumerate(times)]
    log = simulate(made, Scheduler(BlockPool(10**9, 1), max_num_seqs=2), LinearCost(step=1.0))
    late = log.requests[3_000:]
    service = fmean(r.finished - r.admitted for r in late)
    load = 1.5 / 20 * service / 2
    erlang = 2 * load**2 / (1 + load)  # the share that waits
    queued = fmean(r.admitted - r.arrival for r in late)
    assert queued / service == pytest.approx(erlang / (2 * (1 - load)), rel=0.1)


def test_waiting_grows_with_the_variance_of_service():
    """M/G/1: W_q = lambda E[s^2] / (2 (1 - rho)), services .5 or 1.5."""
    queued, _ = waits(0.8, lambda rng: rng.choice((0.5, 1.5)))
    assert fmean(queued) == pytest.approx(0.8 * 1.25 / (2 * 0.2), rel=0.08)


@pytest.mark.parametrize("policy, inside", [(Continuous(), 19), (Static(), 34)])
def test_littles_law_holds_exactly_on_a_finite_run(policy, inside):
    """The time-average number in the system is the arrival rate times the mean time in it."""
    made = [Sequence(i, 0, 1, n) for i, n in enumerate([5, 1, 1, 2, 3])]
    log = simulate(made, Scheduler(BlockPool(100), 2, policy), LinearCost(step=1.0))
    counted = sum((i.waiting + len(i.shares) + len(i.idle)) * (i.end - i.start) for i in log.iterations)
    span = log.iterations[-1].end
    assert counted == sum(r.finished - r.arrival for r in log.requests) == inside
    assert in_system(log.requests) == pytest.approx(counted / span) == pytest.approx(inside / span)


def test_littles_law_holds_under_poisson_arrivals_and_batching():
    rng = Random(3)
    times = Poisson(1.5).times(500, rng)
    made = [Sequence(i, time, rng.randint(1, 50), rng.randint(1, 9)) for i, time in enumerate(times)]
    log = simulate(made, Scheduler(BlockPool(60), 4), LinearCost(step=0.2, prefill_token=0.01))
    inside = [r.finished - r.arrival for r in log.requests]
    span = max(r.finished for r in log.requests) - made[0].arrival
    assert in_system(log.requests) == pytest.approx(len(made) / span * fmean(inside))


def test_beyond_capacity_the_queue_grows_with_what_cannot_be_served():
    """8 slots of forwards that take 1 s give 8 tokens a second: 2 requests of 4 tokens; 3 arrive."""
    times = Poisson(3).times(3000, Random(5))
    made = [Sequence(i, time, 1, 4) for i, time in enumerate(times)]
    log = simulate(made, Scheduler(BlockPool(10**6), 8), LinearCost(step=1.0))
    half = [i for i in log.iterations if times[300] < i.start < times[-1]]
    slope = (half[-1].waiting - half[0].waiting) / (half[-1].start - half[0].start)
    assert slope == pytest.approx(3 - 2, rel=0.1)
    assert all(len(i.shares) == 8 for i in half)
