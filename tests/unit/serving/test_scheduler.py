"""Who runs when: batches worked out by hand, preemption, budgets, orders, and settings that cannot work."""

import pytest

from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.cost_model import Linear
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.policies import Continuous, Dynamic, ShortestFirst, Static
from lessons_lib.serving.pool import CountingPool
from lessons_lib.serving.request import Request, State
from lessons_lib.serving.scheduler import Scheduler
from lessons_lib.serving.simulator import simulate

UNIT = Linear(step=1.0)
PLENTY = 10_000


def requests(outputs, prompt=1, arrivals=None):
    return [Request(i, (arrivals or [0] * len(outputs))[i], prompt, n) for i, n in enumerate(outputs)]


def run(made, slots=2, blocks=PLENTY, block_size=4, cost=UNIT, **settings):
    return simulate(made, Scheduler(CountingPool(blocks, block_size), slots, **settings), cost)


def chart(log):
    """Who ran in each iteration."""
    return [{share.id for share in iteration.shares} for iteration in log.iterations]


def finished(log):
    return [request.finished for request in log.requests]


def test_continuous_batching_fills_a_slot_as_soon_as_it_is_free():
    log = run(requests([5, 1, 1, 2, 3]))
    assert chart(log) == [{0, 1}, {0, 2}, {0, 3}, {0, 3}, {0, 4}, {4}, {4}]
    assert finished(log) == [5, 1, 2, 4, 7]
    assert usage(log).occupancy == 12 / 14


def test_static_batching_runs_to_the_longest_of_each_batch():
    log = run(requests([5, 1, 1, 2, 3]), policy=Static())
    assert finished(log) == [5, 5, 7, 7, 10]  # a request leaves with its batch
    assert len(log.iterations) == 10 and usage(log).occupancy == 0.6


def test_a_static_batch_leaves_with_its_last_forward():
    scheduler, made = Scheduler(CountingPool(10), 2, Static()), requests([1, 2])
    for request in made:
        scheduler.add(request)
    scheduler.commit(scheduler.schedule(0), [[1], [1]], 1)
    assert made[0].state is State.FINISHED and made[0].finished == 1 and not scheduler.empty
    scheduler.commit(scheduler.schedule(1), [[1]], 2)
    assert [request.finished for request in made] == [2, 2] and scheduler.empty


def test_static_batching_wastes_the_slots_of_the_four_request_figure():
    """The figure everybody draws: four requests, the third done after 2 iterations, the second, last, after 6."""
    log = run(requests([3, 6, 2, 5]), slots=4, policy=Static())
    assert len(log.iterations) == 6
    assert usage(log).idle_slots == usage(log).wasted_slots == (6 - 3) + 0 + (6 - 2) + (6 - 5) == 8


def test_the_naive_baseline_runs_every_batch_to_the_longest_of_the_job():
    log = run(requests([5, 1, 1, 2, 3]), policy=Static(steps=5))
    assert finished(log) == [5, 5, 10, 10, 15] and len(log.iterations) == 15
    assert [len(i.shares) for i in log.iterations[7:10]] == [0, 0, 0]  # two finished requests keep the device busy


def test_a_static_batch_waits_until_it_is_full_or_nobody_will_come():
    log = run(requests([2, 2, 2], arrivals=[0, 5, 6]), policy=Static())
    assert [request.admitted for request in log.requests] == [5, 5, 7]


def test_a_dynamic_batch_starts_when_its_window_ends():
    log = run(requests([2, 2, 2, 2], arrivals=[0, 1, 9, 30]), slots=4, policy=Dynamic(window=3))
    assert [request.admitted for request in log.requests] == [3, 3, 12, 30]  # nobody comes after the last
    late = run(requests([5, 1], arrivals=[0, 4]), slots=4, policy=Dynamic(window=3))
    assert [request.admitted for request in late.requests] == [3, 8]  # free slots, but the batch is under way


def test_equal_lengths_leave_nothing_to_gain_over_static():
    made = requests([4] * 6)
    assert chart(run(made, policy=Static())) == chart(run(made))


def test_one_slot_is_one_request_after_another():
    made = requests([3, 1, 2])
    assert finished(run(made, slots=1)) == finished(run(made, slots=1, policy=Static())) == [3, 4, 6]


def test_enough_slots_leave_nobody_waiting():
    log = run(requests([3, 1, 2]), slots=3)
    assert all(request.admitted == 0 for request in log.requests)


def test_shortest_first_lets_short_requests_overtake_waiting_ones():
    log = run(requests([4, 3, 2, 1]), slots=1, policy=ShortestFirst())
    assert finished(log) == [10, 6, 3, 1]


def test_a_policy_is_one_small_class():
    class Ageing(Continuous):
        def order(self, requests, now):
            return sorted(requests, key=lambda r: r.priority - 0.5 * (now - r.arrival))

    made = requests([4, 4, 1, 1], arrivals=[0, 0, 1, 3])
    made[1].priority = 2
    log = run(made, slots=1, policy=Ageing())
    assert sorted(range(4), key=lambda i: finished(log)[i]) == [0, 2, 3, 1]
    made[1].priority = 0.9  # now its age counts for more than the third's priority
    assert sorted(range(4), key=lambda i: finished(run(made, slots=1, policy=Ageing()))[i]) == [0, 2, 1, 3]


@pytest.mark.parametrize("policy", [Continuous(), ShortestFirst()])
def test_a_prompt_in_chunks_never_stops_those_who_decode(policy):
    made = [Request(0, 0, 3, 8), Request(1, 1, 21, 2)]
    log = run(made, policy=policy, token_budget=8, chunked=True)
    fed = [[(s.id, s.fed, s.emitted) for s in i.shares] for i in log.iterations]
    assert [sorted(rows) for rows in fed[:5]] == [
        [(0, 3, 1)],
        [(0, 1, 1), (1, 7, 0)],
        [(0, 1, 1), (1, 7, 0)],
        [(0, 1, 1), (1, 7, 1)],  # the last chunk emits
        [(0, 1, 1), (1, 1, 1)],
    ]


def test_whole_prompts_go_first_and_alone_if_forwards_are_not_mixed():
    made = [Request(0, 0, 3, 4), Request(1, 1, 5, 2)]
    assert chart(run(made, mixed=False)) == [{0}, {1}, {0, 1}, {0}, {0}]
    assert chart(run(made)) == [{0}, {0, 1}, {0, 1}, {0}]


def test_a_token_budget_holds_whole_prompts_back():
    made = [Request(i, 0, 5, 3) for i in range(2)]
    assert chart(run(made, token_budget=7)) == [{0}, {0, 1}, {0, 1}, {1}]


def test_the_newest_is_preempted_when_no_block_is_free_and_starts_again():
    made = [Request(0, 0, 4, 5), Request(1, 0, 4, 5)]  # each grows to 8 tokens: 2 blocks of 4; the pool has 3
    log = run(made, blocks=3, watermark=0)
    assert [request.preemptions for request in log.requests] == [0, 1]
    assert chart(log) == [{0, 1}, {0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}]
    assert log.iterations[5].shares[0].fed == 5  # prompt and the token emitted before: rebuilt in one forward
    assert log.iterations[1].preempted == [1]


def test_whoever_is_preempted_does_not_run_even_if_the_policy_changes_its_mind():
    class Fickle(Continuous):
        calls = 0

        def order(self, requests, now):
            self.calls += 1
            return list(requests) if self.calls % 2 else list(requests)[::-1]

    scheduler, made = Scheduler(CountingPool(3, 4), 2, Fickle(), watermark=0), requests([5, 5], prompt=4)
    for request in made:
        scheduler.add(request)
    scheduler.policy.calls = 1
    scheduler.commit(scheduler.schedule(0), [[1], [1]], 1)
    scheduler.policy.calls = 0
    plan = scheduler.schedule(1)
    assert len(plan.rows) == 1 and plan.preempted == [made[0]] and plan.rows[0][0] is made[1]


def test_a_preempted_request_comes_before_those_that_arrived_with_it():
    log = run(requests([9, 9, 2], prompt=4), blocks=5, watermark=0)
    assert log.requests[1].preemptions == 1 and [share.id for share in log.iterations[9].shares] == [1, 2]


def test_a_preempted_request_that_finds_its_text_cached_has_room_for_guesses_at_once():
    pool = BlockPool(6, block_size=2)
    scheduler, request, other = Scheduler(pool, lookahead=2), Request(0, 0, 4, 5, ids=[1, 2, 3, 4]), Request(1, 0, 8)
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(0), [[5]], 1)
    pool.allocate(other, 8)
    assert scheduler.schedule(1).preempted == [request]
    pool.release(other)
    assert scheduler.schedule(2).rows == [(request, 3)] and request.reused == 4
    assert len(pool.tables[request].blocks) == 4  # 4 cached tokens, the newest and two guesses


@pytest.mark.parametrize("reserve", ["max", "oracle"])
def test_reserving_the_whole_length_never_preempts_and_admits_fewer(reserve):
    made = [Request(i, 0, 4, 5, max_tokens=9) for i in range(4)]
    log = run(made, slots=4, blocks=6, reserve=reserve, watermark=0)
    assert usage(log).preemptions == 0
    assert max(len(i.shares) for i in log.iterations) == {"max": 2, "oracle": 3}[reserve]
    assert max(len(i.shares) for i in run(made, slots=4, blocks=6, watermark=0).iterations) == 4


def test_an_oracle_knows_that_the_limit_ends_a_text_too():
    log = run([Request(i, 0, 4, 1000, max_tokens=2) for i in range(2)], blocks=4, reserve="oracle", watermark=0)
    assert [request.emitted for request in log.requests] == [2, 2]
    assert log.iterations[0].used_blocks == 4  # 4 + 2 - 1 tokens each


@pytest.mark.parametrize("pool", [CountingPool, BlockPool])
@pytest.mark.parametrize("reserve, kept", [("none", 2), ("max", 4)])
def test_room_for_rejected_guesses_is_given_back_and_what_was_reserved_is_not(pool, reserve, kept):
    scheduler = Scheduler(pool(20, 4), 1, reserve=reserve, lookahead=16)
    scheduler.add(Request(0, 0, 4, 12, ids=[1, 2, 3, 4]))
    scheduler.commit(scheduler.schedule(0), [[7]], 1)
    plan = scheduler.schedule(1)
    assert 20 - scheduler.pool.free_blocks == 6 and plan.rows[0][1] == 17  # 4 cached tokens and 17 more
    scheduler.commit(plan, [[7]], 2)
    assert 20 - scheduler.pool.free_blocks == kept  # 5 cached tokens and the next one, or 4 + 12 - 1


def test_blocks_are_needed_for_tokens_fed_not_for_tokens_emitted():
    for prompt, output, size, blocks in [(5, 4, 4, 2), (5, 5, 4, 3), (16, 1, 16, 1), (16, 2, 16, 2)]:
        log = run([Request(0, 0, prompt, output)], blocks=10, block_size=size)
        assert max(i.used_blocks for i in log.iterations) == blocks


def test_admission_leaves_the_watermark_free():
    made = [Request(i, 0, 4, 1) for i in range(10)]
    assert len(chart(run(made, slots=10, blocks=10, watermark=0.5))[0]) == 5
    assert run([Request(0, 0, 30, 11)], blocks=10, watermark=0.5).requests[0].emitted == 11  # alone it may have all


def test_a_cancelled_request_leaves_slot_and_blocks_at_once():
    pool = CountingPool(10, 4)
    scheduler, made = Scheduler(pool, 1), requests([5, 2])
    for request in made:
        scheduler.add(request)
    plan = scheduler.schedule(0)
    scheduler.cancel(made[0])
    assert scheduler.commit(plan, [[7]], 1) == [] and made[0].emitted == 0  # its token came too late
    assert pool.free_blocks == 10 and made[0].state is State.CANCELLED
    assert [request for request, _ in scheduler.schedule(1).rows] == [made[1]]
    scheduler.cancel(made[0])  # twice does no harm


def test_a_request_that_waits_can_be_cancelled():
    scheduler, made = Scheduler(CountingPool(10, 4), 1), requests([5, 2])
    for request in made:
        scheduler.add(request)
    scheduler.cancel(made[0])
    assert [request for request, _ in scheduler.schedule(0).rows] == [made[1]]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"slots": 0}, "at least one slot"),
        ({"reserve": "some"}, "reserve is 'none'"),
        ({"lookahead": -1}, "lookahead"),
        ({"watermark": 1}, "watermark"),
        ({"slots": 4, "token_budget": 3}, "must cover 4 tokens"),
        ({"slots": 4, "token_budget": 11, "lookahead": 2}, "must cover 12 tokens"),
        ({"chunked": True}, "needs a token_budget"),
        ({"chunked": True, "token_budget": 64, "mixed": False}, "mixed=True"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(CountingPool(10), **settings)


def test_a_request_longer_than_the_pool_is_refused_and_the_others_go_on():
    log = run([Request(0, 0, 4, 5), Request(1, 0, 30, 12), Request(2, 0, 4, 5)], blocks=10)
    assert [request.state for request in log.requests] == [State.FINISHED, State.REJECTED, State.FINISHED]
    assert "need 41 cached tokens, the pool has room for 40" in log.requests[1].error
    assert run([Request(0, 0, 30, 11)], blocks=10).requests[0].state is State.FINISHED  # 40 fit
    assert "need 42" in run([Request(0, 0, 30, 11)], blocks=10, lookahead=2).requests[0].error  # guesses need room too


def test_a_prompt_over_the_token_budget_is_refused_unless_it_may_be_chunked():
    made = [Request(0, 0, 100, 2)]
    assert "set chunked=True" in run(made, token_budget=64).requests[0].error
    assert run(made, token_budget=64, chunked=True).requests[0].state is State.FINISHED
    grown = [Request(0, 0, 60, 6)]  # preempted near its end it would have to be fed 65 tokens at once
    assert "up to 65 tokens at once" in run(grown, token_budget=64).requests[0].error
    assert run(grown, token_budget=64, reserve="max").requests[0].state is State.FINISHED


def test_a_served_request_must_be_made_fresh_to_run_again():
    scheduler = Scheduler(CountingPool(10))
    request = Request(0, 0, 4, 1)
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(0), [[1]], 1)
    with pytest.raises(ValueError, match="fresh"):
        scheduler.add(request)
    scheduler.add(request.fresh())


def test_a_request_is_queued_once():
    scheduler, request = Scheduler(CountingPool(10)), Request(0, 0, 4, 2)
    scheduler.add(request)
    with pytest.raises(ValueError, match="waits already"):
        scheduler.add(request)
    scheduler.schedule(0)
    with pytest.raises(ValueError, match="is running"):
        scheduler.add(request)


@pytest.mark.parametrize("policy", [Continuous(), Static(steps=9)])
def test_a_stopped_scheduler_holds_nothing(policy):
    pool = CountingPool(10, 4)
    scheduler, made = Scheduler(pool, 2, policy), requests([1, 5, 2])
    for request in made:
        scheduler.add(request)
    scheduler.commit(scheduler.schedule(0), [[1], [1]], 1)
    scheduler.stop(1.5)
    assert [request.state.value for request in made] == ["finished", "cancelled", "cancelled"]
    assert pool.free_blocks == 10 and scheduler.empty and not scheduler.unfinished
    assert sorted(scheduler._free_slots) == [0, 1]
    assert made[0].finished == (1.5 if policy.hold else 1)


def test_a_pool_without_blocks_is_refused():
    with pytest.raises(ValueError, match="needs blocks"):
        CountingPool(0)


def test_a_policy_that_lets_nobody_in_is_an_error_and_no_hang():
    class Closed(Continuous):
        def admit(self, scheduler, now):
            return 0

    with pytest.raises(RuntimeError, match="^Closed lets none of the waiting in"):
        run(requests([1]), policy=Closed())
