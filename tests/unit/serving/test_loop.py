"""The serving loop: arrivals, requests that it does not serve, and policies that let nobody in yet."""

import pytest

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import serve
from lessons_lib.serving.scheduler import Continuous, Scheduler
from lessons_lib.serving.simulator import Simulator, simulate


def test_what_arrives_during_a_pass_joins_the_next():
    log = simulate([Sequence(0, 0, 1, 3), Sequence(1, 0.5, 1, 1)], Scheduler(BlockPool(9)), LinearCost(step=1.0))
    assert log.requests[1].admitted == 1.0 and log.requests[1].times == [2.0]


def test_a_request_cancelled_before_it_arrives_is_never_served():
    made = [Sequence(0, 0, 1, 2), Sequence(1, 5, 1, 2)]
    scheduler = Scheduler(BlockPool(9))
    scheduler.cancel(made[1])
    log = serve(made, scheduler, backend := Simulator(LinearCost(step=1.0)))
    assert made[1].status is Status.CANCELLED and made[1].error is None and len(log.iterations) == 2
    assert backend.time == 2.0  # nobody waited for it


def test_a_request_that_has_been_served_or_comes_twice_is_served_once_and_has_not_failed():
    made, backend = [Sequence(0, 0, 1, 2), Sequence(1, 0, 1, 2)], Simulator(LinearCost(step=1.0))
    serve(made[:1], Scheduler(BlockPool(9)), backend)
    log = serve([made[0], made[1], made[1]], Scheduler(BlockPool(9)), backend)
    assert [request.error for request in made] == [None, None]
    assert [request.times for request in made] == [[1, 2], [3, 4]] and len(log.iterations) == 2


def test_nobody_waits_for_the_arrival_of_a_request_that_has_been_served():
    made, cost = [Sequence(0, 50, 1, 2), Sequence(1, 0, 1, 2)], LinearCost(step=1.0)
    serve(made[:1], Scheduler(BlockPool(9)), Simulator(cost))
    serve(made, Scheduler(BlockPool(9)), backend := Simulator(cost))
    assert made[1].times == [1, 2] and backend.time == 2.0


def test_a_policy_that_lets_nobody_in_yet_is_asked_again_when_it_says():
    class Later(Continuous):
        def admit(self, scheduler, now):
            return super().admit(scheduler, now) if now >= 5 else 0

        def wake(self, scheduler):
            return 5.0

    log = simulate([Sequence(0, 0, 1, 2)], Scheduler(BlockPool(9), policy=Later()), LinearCost(step=1.0))
    assert log.requests[0].times == [6.0, 7.0]


def test_a_policy_that_wanted_to_be_asked_before_now_is_asked_at_the_next_arrival():
    class Pairs(Continuous):
        def admit(self, scheduler, now):
            return 2 if len(scheduler.waiting) >= 2 else 0

        def wake(self, scheduler):
            return 1.0

    class Clock(Simulator):
        waits = []

        def wait(self, until):
            assert until > self.time, "time does not pass"
            self.waits.append(until)
            super().wait(until)

    made, scheduler = [Sequence(i, 3.0 * i, 1, 1) for i in range(3)], Scheduler(BlockPool(9), policy=Pairs())
    with pytest.raises(RuntimeError, match="Pairs lets none of the waiting in though nothing runs"):
        serve(made, scheduler, Clock(LinearCost(step=1.0)))  # nobody comes to wait beside the third
    assert Clock.waits == [1.0, 3.0, 6.0] and [request.times for request in made] == [[4.0], [4.0], []]
