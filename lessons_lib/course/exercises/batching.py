"""Checkers: blocks of a request, iterations of two ways to batch, and two policies that beat a target."""

from statistics import mean

from lessons_lib.course.exercises import Attempt, Wrong, exercise, expect
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.scheduler import Continuous, Scheduler
from lessons_lib.serving.simulator import simulate
from lessons_lib.serving.workload import Arrivals, AtOnce, Exponential, Fixed, Poisson, Workload

SLOTS = 8
SOON = 120  # mean end-to-end latency to reach, in iterations; first come, first served has 173
URGENT, ANYBODY = 30, 180  # mean wait of the urgent and longest wait of all; 46 and 88 by arrival, 10 and 258
# by priority alone


@exercise("05.1")
def blocks_needed(attempt: Attempt) -> None:
    """The last token of an output is never fed: ceil((P + n - 1) / block size)."""
    expect(attempt, 5, 4, 4, equals=2)
    expect(attempt, 5, 5, 4, equals=3)
    expect(attempt, 16, 1, 16, equals=1)
    expect(attempt, 16, 2, 16, equals=2)
    expect(attempt, 100, 29, 1, equals=128)


@exercise("05.2")
def iterations(attempt: Attempt) -> None:
    """(sum of the batches' longest, last departure if whoever leaves is replaced at once)."""
    expect(attempt, [5, 1, 1, 2, 3], 2, equals=(10, 7))
    expect(attempt, [3, 6, 2, 5, 4, 3, 2], 4, equals=(10, 7))
    expect(attempt, [4, 4, 4, 4], 2, equals=(8, 8))
    expect(attempt, [7], 3, equals=(7, 7))
    expect(attempt, [2, 9, 1], 1, equals=(12, 12))


@exercise("05.3")
def shortest_remaining(attempt: Attempt) -> None:
    """Mean end-to-end latency of requests that all come at once."""
    served = run(attempt, outputs(120, AtOnce()))
    took = mean(request.timeline().e2e for request in served)
    assert took <= SOON, f"the mean latency is {took:.0f} iterations; bring it to {SOON} or less."


@exercise("05.4")
def ageing(attempt: Attempt) -> None:
    """Urgent requests wait little, and nobody waits for ever."""
    made = outputs(240, Poisson(0.45))
    for i, request in enumerate(made):
        request.priority = 100.0 if i % 4 == 0 else 0.0
    waits = [(request.priority, request.timeline().ttft) for request in run(attempt, made)]
    urgent = mean(wait for priority, wait in waits if priority == 0)
    longest = max(wait for _, wait in waits)
    assert urgent <= URGENT, f"urgent requests wait {urgent:.0f} iterations on average; bring that to {URGENT} or less."
    assert longest <= ANYBODY, f"somebody waits {longest:.0f} iterations; let nobody wait more than {ANYBODY}."


def outputs(count: int, arrivals: Arrivals) -> list[Sequence]:
    """Requests of one block's prompt and exponential outputs."""
    return Workload(count, Fixed(8), Exponential(24, 96), arrivals).requests()


def run(attempt: Attempt, requests: list[Sequence]) -> list[Sequence]:
    """The requests, served with attempt() as the policy; a forward pass takes 1. Wrong, if it cannot be used as one."""
    policy = attempt()
    if not isinstance(policy, Continuous):
        raise Wrong(f"{policy!r} is no policy; make a class on top of Continuous.")
    try:
        return simulate(requests, Scheduler(BlockPool(10_000), SLOTS, policy), LinearCost(step=1.0)).requests
    except NotImplementedError:
        raise
    except Exception as error:
        raise Wrong(f"it raised {type(error).__name__}: {error}") from error
