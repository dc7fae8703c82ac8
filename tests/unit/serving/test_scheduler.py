"""Who runs when: batches worked out by hand, preemption, budgets, orders, and settings that cannot work."""

import pytest
from support.schedules import chart, commit, finished, requests, run

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, ShortestFirst, Static


def test_continuous_batching_fills_a_slot_as_soon_as_it_is_free():
    log = run(requests([5, 1, 1, 2, 3]))
    assert chart(log) == [{0, 1}, {0, 2}, {0, 3}, {0, 3}, {0, 4}, {4}, {4}]
    assert finished(log) == [5, 1, 2, 4, 7]
    assert usage(log).occupancy == 12 / 14


def test_whoever_comes_next_gets_the_lowest_free_slot():
    scheduler, made = Scheduler(BlockPool(100), 3), requests([3, 9, 2, 1, 1])
    for request in made[:3]:
        scheduler.add(request)
    for now in range(3):
        plan = scheduler.schedule(now)
        commit(scheduler, plan, [[1]] * len(plan.rows), now + 1)
    assert [request.status is Status.FINISHED for request in made[:3]] == [True, False, True]  # slot 2 first, then 0
    for request in made[3:]:
        scheduler.add(request)
    scheduler.schedule(3)
    assert [request.slot for request in made[3:]] == [0, 2]


def test_static_batching_runs_to_the_longest_of_each_batch():
    log = run(requests([5, 1, 1, 2, 3]), policy=Static())
    assert finished(log) == [5, 5, 7, 7, 10]  # a request leaves with its batch
    assert len(log.iterations) == 10 and usage(log).occupancy == 0.6


def test_a_static_batch_leaves_with_its_last_forward():
    scheduler, made = Scheduler(BlockPool(10), 2, Static()), requests([1, 2])
    for request in made:
        scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[1], [1]], 1)
    assert made[0].status is Status.FINISHED and made[0].finished == 1 and not scheduler.empty
    commit(scheduler, scheduler.schedule(1), [[1]], 2)
    assert [request.finished for request in made] == [2, 2] and scheduler.empty


def test_static_batching_wastes_the_slots_of_the_four_request_figure():
    """The figure everybody draws: four requests, the third done after 2 iterations, the second, last, after 6."""
    log = run(requests([3, 6, 2, 5]), max_num_seqs=4, policy=Static())
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
    log = run(requests([2, 2, 2, 2], arrivals=[0, 1, 9, 30]), max_num_seqs=4, policy=Dynamic(window=3))
    assert [request.admitted for request in log.requests] == [3, 3, 12, 30]  # nobody comes after the last
    late = run(requests([5, 1], arrivals=[0, 4]), max_num_seqs=4, policy=Dynamic(window=3))
    assert [request.admitted for request in late.requests] == [3, 8]  # free slots, but the batch is under way


def test_equal_lengths_leave_nothing_to_gain_over_static():
    made = requests([4] * 6)
    assert chart(run(made, policy=Static())) == chart(run(made))


def test_one_slot_is_one_request_after_another():
    made = requests([3, 1, 2])
    assert finished(run(made, max_num_seqs=1)) == finished(run(made, max_num_seqs=1, policy=Static())) == [3, 4, 6]


def test_enough_slots_leave_nobody_waiting():
    log = run(requests([3, 1, 2]), max_num_seqs=3)
    assert all(request.admitted == 0 for request in log.requests)


def test_shortest_first_lets_short_requests_overtake_waiting_ones():
    log = run(requests([4, 3, 2, 1]), max_num_seqs=1, policy=ShortestFirst())
    assert finished(log) == [10, 6, 3, 1]


def test_a_policy_is_one_small_class():
    class Ageing(Continuous):
        def order(self, requests, now):
            return sorted(requests, key=lambda r: r.priority - 0.5 * (now - r.arrival))

    made = requests([4, 4, 1, 1], arrivals=[0, 0, 1, 3])
    made[1].priority = 2
    log = run(made, max_num_seqs=1, policy=Ageing())
    assert sorted(range(4), key=lambda i: finished(log)[i]) == [0, 2, 3, 1]
    made[1].priority = 0.9  # now its age counts for more than the third's priority
    assert sorted(range(4), key=lambda i: finished(run(made, max_num_seqs=1, policy=Ageing()))[i]) == [0, 2, 1, 3]


@pytest.mark.parametrize("policy", [Continuous(), ShortestFirst()])
def test_a_prompt_in_chunks_never_stops_those_who_decode(policy):
    made = [Sequence(0, 0, 3, 8), Sequence(1, 1, 21, 2)]
    log = run(made, policy=policy, max_num_batched_tokens=8, chunked=True)
    fed = [[(s.id, s.fed, s.emitted) for s in i.shares] for i in log.iterations]
    assert [sorted(rows) for rows in fed[:5]] == [
        [(0, 3, 1)],
        [(0, 1, 1), (1, 7, 0)],
        [(0, 1, 1), (1, 7, 0)],
        [(0, 1, 1), (1, 7, 1)],  # the last chunk emits
        [(0, 1, 1), (1, 1, 1)],
    ]


def test_a_prompt_in_chunks_owns_room_for_all_of_it_from_the_first():
    log = run([Sequence(0, 0, 9, 1)], max_num_batched_tokens=4, chunked=True)
    assert [i.used_blocks for i in log.iterations] == [3, 3, 3]


def test_whole_prompts_go_first_and_alone_if_forwards_are_not_mixed():
    made = [Sequence(0, 0, 3, 4), Sequence(1, 1, 5, 2)]
    assert chart(run(made, mixed=False)) == [{0}, {1}, {0, 1}, {0}, {0}]
    assert chart(run(made)) == [{0}, {0, 1}, {0, 1}, {0}]


def test_a_max_num_batched_tokens_holds_whole_prompts_back():
    made = [Sequence(i, 0, 5, 3) for i in range(2)]
    assert chart(run(made, max_num_batched_tokens=7)) == [{0}, {0, 1}, {0, 1}, {1}]
    assert (
        chart(run([Sequence(i, 0, 5, 3) for i in range(2)], max_num_batched_tokens=10)) == [{0, 1}] * 3
    )  # both just fit


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"reserve": "some"}, "reserve is 'none'"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is"),
        ({"watermark": 1}, "watermark"),
        ({"max_num_seqs": 4, "max_num_batched_tokens": 3}, "must cover 4 tokens"),
        ({"max_num_seqs": 4, "max_num_batched_tokens": 11, "num_speculative_tokens": 2}, "must cover 12 tokens"),
        ({"chunked": True}, "needs max_num_batched_tokens"),
        ({"chunked": True, "max_num_batched_tokens": 64, "mixed": False}, "mixed=True"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(BlockPool(10), **settings)


def test_a_request_longer_than_the_pool_is_refused_and_the_others_go_on():
    log = run([Sequence(0, 0, 4, 5), Sequence(1, 0, 30, 12), Sequence(2, 0, 4, 5)], blocks=10)
    assert [request.status for request in log.requests] == [Status.FINISHED, Status.REJECTED, Status.FINISHED]
    assert "need 41 cached tokens, the pool has room for 40" in log.requests[1].error
    assert run([Sequence(0, 0, 30, 11)], blocks=10).requests[0].status is Status.FINISHED  # 40 fit
    assert (
        "need 42" in run([Sequence(0, 0, 30, 11)], blocks=10, num_speculative_tokens=2).requests[0].error
    )  # guesses need room too


def test_a_prompt_over_the_max_num_batched_tokens_is_refused_unless_it_may_be_chunked():
    made = [Sequence(0, 0, 100, 2)]
    assert "set chunked=True" in run(made, max_num_batched_tokens=64).requests[0].error
    assert run(made, max_num_batched_tokens=64, chunked=True).requests[0].status is Status.FINISHED
    grown = [Sequence(0, 0, 60, 6)]  # preempted near its end it would have to be fed 65 tokens at once
    assert "up to 65 tokens at once" in run(grown, max_num_batched_tokens=64).requests[0].error
    assert run(grown, max_num_batched_tokens=64, reserve="max").requests[0].status is Status.FINISHED


def test_a_served_request_must_be_made_fresh_to_run_again():
    scheduler = Scheduler(BlockPool(10))
    request = Sequence(0, 0, 4, 1)
    scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[1]], 1)
    with pytest.raises(ValueError, match="fresh"):
        scheduler.add(request)
    scheduler.add(request.fresh())


def test_a_request_is_queued_once():
    scheduler, request = Scheduler(BlockPool(10)), Sequence(0, 0, 4, 2)
    scheduler.add(request)
    with pytest.raises(ValueError, match="waits already"):
        scheduler.add(request)
    scheduler.schedule(0)
    with pytest.raises(ValueError, match="is running"):
        scheduler.add(request)


@pytest.mark.parametrize("policy", [Continuous(), Static(steps=9)])
def test_a_stopped_scheduler_holds_nothing(policy):
    pool = BlockPool(10, 4)
    scheduler, made = Scheduler(pool, 2, policy), requests([1, 5, 2])
    for request in made:
        scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[1], [1]], 1)
    scheduler.stop(1.5)
    assert [request.status.value for request in made] == ["finished", "cancelled", "cancelled"]
    assert pool.free_blocks == 10 and scheduler.empty and not scheduler.unfinished
    assert sorted(scheduler._free_slots) == [0, 1]
    assert made[0].finished == (1.5 if policy.hold else 1)


def test_a_policy_that_lets_nobody_in_is_an_error_and_no_hang():
    class Closed(Continuous):
        def admit(self, scheduler, now):
            return 0

    with pytest.raises(RuntimeError, match="^Closed lets none of the waiting in"):
        run(requests([1]), policy=Closed())


def test_a_policy_is_asked_whom_to_admit_only_when_somebody_waits_for_a_free_slot():
    class Strict(Continuous):
        def admit(self, scheduler, now):
            assert scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs
            return super().admit(scheduler, now)

    assert finished(run(requests([5, 1, 1]), policy=Strict())) == finished(run(requests([5, 1, 1])))
