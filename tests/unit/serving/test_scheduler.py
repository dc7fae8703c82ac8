"""Who runs when and who must leave: batches worked out by hand, preemption, budgets, reserving, cancelling."""

import pytest
from support.schedules import UNIT, chart, commit, fed, finished, requests, run

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, Static
from lessons_lib.serving.simulator import simulate


def test_continuous_batching_fills_a_slot_as_soon_as_it_is_free():
    log = run(requests([5, 1, 1, 2, 3]))
    assert chart(log) == [{0, 1}, {0, 2}, {0, 3}, {0, 3}, {0, 4}, {4}, {4}]
    assert finished(log) == [5, 1, 2, 4, 7]


def test_static_batching_runs_to_the_longest_of_each_batch():
    log = run(requests([5, 1, 1, 2, 3]), policy=Static())
    assert finished(log) == [5, 5, 7, 7, 10]  # a request leaves with its batch
    assert len(log.iterations) == 10


def test_the_naive_baseline_runs_every_batch_to_the_longest_of_the_job():
    log = run(requests([5, 1, 1, 2, 3]), policy=Static(steps=5))
    assert finished(log) == [5, 5, 10, 10, 15] and len(log.iterations) == 15
    assert [len(i.shares) for i in log.iterations[7:10]] == [0, 0, 0]  # two finished requests keep the device busy


def test_a_static_batch_waits_until_it_is_full_or_nobody_will_come():
    log = run(requests([2, 2, 2], arrivals=[0, 5, 6]), policy=Static())
    assert [request.admitted for request in log.requests] == [5, 5, 7]


def test_a_cancelled_member_of_a_static_batch_leaves_its_slot_empty():
    scheduler, made = Scheduler(BlockPool(10, 4), 2, Static()), requests([5, 5, 1])
    for request in made:
        scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[1], [1]], 1)
    scheduler.cancel(made[1])
    assert fed(scheduler.schedule(1)) == [(made[0], 1)]  # the third waits for the end of the batch


def test_a_preempted_member_rejoins_its_batch_and_a_newcomer_waits_for_the_next():
    scheduler = Scheduler(BlockPool(5, 4), 4, Dynamic(window=0.0))
    made = requests([9, 9, 9, 1], prompt=3, arrivals=[0, 0, 0, 0.5])
    for request in made[:3]:
        scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[1]] * 3, 1)
    scheduler.add(made[3])
    commit(scheduler, scheduler.schedule(1), [[1]] * 3, 2)
    plan = scheduler.schedule(2)
    assert plan.preempted == [made[2]]  # each needs a second block, and two are free
    commit(scheduler, plan, [[1]] * 2, 3)
    scheduler.cancel(made[0])  # room for two more
    assert fed(scheduler.schedule(3)) == [(made[1], 1), (made[2], 5)]


def test_members_that_the_token_budget_put_off_need_no_new_batch():
    made = [Sequence(i, 0, 10, 3) for i in range(4)] + [Sequence(4, 100, 10, 3)]
    log = run(made, 4, policy=Static(), max_num_batched_tokens=10, reserve="max")
    assert [request.admitted for request in log.requests] == [0, 3, 6, 9, 100]


def test_a_dynamic_batch_starts_when_its_window_ends():
    log = run(requests([2, 2, 2, 2], arrivals=[0, 1, 9, 30]), max_num_seqs=4, policy=Dynamic(window=3))
    assert [request.admitted for request in log.requests] == [3, 3, 12, 30]  # nobody comes after the last
    late = run(requests([5, 1], arrivals=[0, 4]), max_num_seqs=4, policy=Dynamic(window=3))
    assert [request.admitted for request in late.requests] == [3, 8]  # free slots, but the batch is under way


def test_a_prompt_in_chunks_never_stops_those_who_decode():
    made = [Sequence(0, 0, 3, 8), Sequence(1, 1, 21, 2)]
    log = run(made, max_num_batched_tokens=8, enable_chunked_prefill=True)
    shares = [[(s.id, s.fed, s.emitted) for s in i.shares] for i in log.iterations]
    assert [sorted(rows) for rows in shares[:5]] == [
        [(0, 3, 1)],
        [(0, 1, 1), (1, 7, 0)],
        [(0, 1, 1), (1, 7, 0)],
        [(0, 1, 1), (1, 7, 1)],  # the last chunk emits
        [(0, 1, 1), (1, 1, 1)],
    ]


def test_a_prompt_in_chunks_owns_room_for_all_of_it_from_the_first():
    log = run([Sequence(0, 0, 9, 1)], max_num_batched_tokens=4, enable_chunked_prefill=True)
    assert [i.used_blocks for i in log.iterations] == [3, 3, 3]


def test_whole_prompts_go_first_and_alone_if_passes_are_not_mixed():
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
        ({"enable_chunked_prefill": True}, "needs max_num_batched_tokens"),
        ({"enable_chunked_prefill": True, "max_num_batched_tokens": 64, "mixed": False}, "mixed=True"),
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
    )  # draft tokens need room too


def test_a_prompt_over_the_max_num_batched_tokens_is_refused_unless_it_may_be_chunked():
    made = [Sequence(0, 0, 100, 2)]
    assert "set enable_chunked_prefill=True" in run(made, max_num_batched_tokens=64).requests[0].error
    assert run(made, max_num_batched_tokens=64, enable_chunked_prefill=True).requests[0].status is Status.FINISHED
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
    assert made[0].finished == (1.5 if policy.hold else 1)


@pytest.mark.parametrize("number", [0, -1])
def test_a_policy_that_lets_nobody_in_is_an_error_and_no_hang(number):
    class Closed(Continuous):
        def admit(self, scheduler, now):
            return number

    with pytest.raises(RuntimeError, match="^Closed lets none of the waiting in"):
        run(requests([1, 1, 1, 1]), policy=Closed())
    scheduler = Scheduler(BlockPool(9), 2, policy=Closed())
    for request in requests([1, 1, 1, 1]):
        scheduler.add(request)
    assert not scheduler.schedule(0.0).rows


def test_the_newest_is_preempted_when_no_block_is_free_and_starts_again():
    made = [Sequence(0, 0, 4, 5), Sequence(1, 0, 4, 5)]  # each grows to 8 tokens: 2 blocks of 4; the pool has 3
    log = run(made, blocks=3, watermark=0)
    assert [request.preemptions for request in log.requests] == [0, 1] and usage(log).preemptions == 1
    assert chart(log) == [{0, 1}, {0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}]
    assert log.iterations[5].shares[0].fed == 5  # prompt and the token emitted before: rebuilt in one pass
    assert log.iterations[1].preempted == [1]


def test_a_step_that_preempts_admits_nobody():
    scheduler = Scheduler(BlockPool(3, 4), 3, watermark=0)
    running, late = [Sequence(0, 1, 4, 5), Sequence(1, 1, 4, 6)], Sequence(2, 0, 2, 1)  # late: first in the queue
    for request in running:
        scheduler.add(request)
    commit(scheduler, scheduler.schedule(1), [[1], [1]], 2)
    scheduler.add(late)
    plan = scheduler.schedule(2)  # both need a second block and one is free; the third request would find a freed one
    assert plan.preempted == [running[1]] and fed(plan) == [(running[0], 1)]
    commit(scheduler, plan, [[1]], 3)
    assert fed(scheduler.schedule(3)) == [(running[0], 1), (late, 2)]


def test_a_preempted_request_comes_before_those_that_arrived_with_it():
    log = run(requests([9, 9, 2], prompt=4), blocks=5, watermark=0)
    assert log.requests[1].preemptions == 1 and [share.id for share in log.iterations[9].shares] == [1, 2]


def test_a_preempted_request_that_finds_its_text_cached_has_room_for_draft_tokens_at_once():
    pool = BlockPool(6, block_size=2)
    scheduler = Scheduler(pool, num_speculative_tokens=2)
    request, other = Sequence(0, 0, 4, 5, ids=[1, 2, 3, 4]), Sequence(1, 0, 8)
    scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[5]], 1)
    pool.allocate(other, 8)
    assert scheduler.schedule(1).preempted == [request] and request.num_computed_tokens == 0  # it found no room at once
    pool.release(other)
    assert fed(scheduler.schedule(2)) == [(request, 3)] and request.num_computed_tokens == 4
    assert len(request.block_table) == 4  # 4 cached tokens, the newest and two draft tokens


def test_a_request_admitted_again_keeps_what_it_reused_and_when_it_was_admitted_first():
    pool, other = BlockPool(8, block_size=2), Sequence("other", 0, 99)
    scheduler = Scheduler(pool, 1)
    first, second = (Sequence(n, 0, output_length=n, ids=list(range(4 + n))) for n in (1, 2))
    for request, token in ((first, 5), (second, 7)):
        scheduler.add(request)
        commit(scheduler, scheduler.schedule(request.output_length), [[token]], 2)
    assert second.reused == 4 and pool.allocate(other, 2 * pool.free_blocks)
    assert scheduler.schedule(3).preempted == [second]
    pool.release(other)
    assert fed(scheduler.schedule(4)) == [(second, 1)] and second.num_computed_tokens == 6  # its own blocks
    assert second.reused == 4 and second.admitted == 2


@pytest.mark.parametrize("reserve, draft_tokens, at_once", [
    ("max", 0, 2), ("oracle", 0, 3), ("max", 2, 1), ("oracle", 2, 2), ("oracle", 6, 1),
])  # fmt: skip
def test_reserving_the_whole_length_never_preempts_and_admits_fewer(reserve, draft_tokens, at_once):
    """4 + 9 - 1 = 12 tokens are reserved or 4 + 5 - 1 = 8, and draft tokens: 2, 3 or 4 of 6 blocks of 4 tokens."""
    made = [Sequence(i, 0, 4, 5, max_tokens=9) for i in range(4)]
    log = run(made, max_num_seqs=4, blocks=6, reserve=reserve, watermark=0, num_speculative_tokens=draft_tokens)
    assert usage(log).preemptions == 0
    assert max(len(i.shares) for i in log.iterations) == at_once
    assert max(len(i.shares) for i in run(made, max_num_seqs=4, blocks=6, watermark=0).iterations) == 4


def test_an_oracle_knows_that_the_limit_ends_a_text_too():
    log = run([Sequence(i, 0, 4, 1000, max_tokens=2) for i in range(2)], blocks=4, reserve="oracle", watermark=0)
    assert [request.num_output_tokens for request in log.requests] == [2, 2]
    assert log.iterations[0].used_blocks == 4  # 4 + 2 - 1 tokens each


def test_an_oracle_takes_what_fits_although_its_limit_would_not():
    made = [Sequence(0, 0, 4, 5, max_tokens=1000)]
    assert run(made, blocks=6, reserve="oracle").requests[0].status is Status.FINISHED  # 4 + 5 - 1 tokens of 24
    assert "need 1003 cached tokens" in run(made, blocks=6, reserve="max").requests[0].error


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("reserve, owned, kept", [("none", 6, 2), ("max", 8, 8)])
def test_room_for_rejected_draft_tokens_is_given_back_and_what_was_reserved_is_not(sharing, reserve, owned, kept):
    scheduler = Scheduler(BlockPool(20, 4, sharing), 1, reserve=reserve, num_speculative_tokens=16)
    scheduler.add(Sequence(0, 0, 4, 12, ids=[1, 2, 3, 4]))
    commit(scheduler, scheduler.schedule(0), [[7]], 1)
    plan = scheduler.schedule(1)
    assert plan.rows[0].tokens == 17
    assert 20 - scheduler.pool.free_blocks == owned  # 4 cached tokens and 17 more, or 4 + 12 - 1 + 16
    commit(scheduler, plan, [[7]], 2)
    assert 20 - scheduler.pool.free_blocks == kept  # 5 cached tokens and the next one, or as many as before


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("prompt, output, size, blocks", [(5, 4, 4, 2), (5, 5, 4, 3), (16, 1, 16, 1), (16, 2, 16, 2)])
def test_blocks_are_needed_for_tokens_fed_not_for_tokens_emitted(sharing, prompt, output, size, blocks):
    made = [Sequence(0, 0, prompt, output, ids=list(range(prompt)))]
    log = simulate(made, Scheduler(BlockPool(10, size, sharing)), UNIT)
    assert max(i.used_blocks for i in log.iterations) == blocks


def test_admission_leaves_the_watermark_free():
    made = [Sequence(i, 0, 4, 1) for i in range(10)]
    assert len(chart(run(made, max_num_seqs=10, blocks=10, watermark=0.5))[0]) == 5
    assert (
        run([Sequence(0, 0, 30, 11)], blocks=10, watermark=0.5).requests[0].num_output_tokens == 11
    )  # alone it may have all


@pytest.fixture
def passing():
    """A scheduler with one slot whose first pass, over the first of two requests, is under way."""
    pool = BlockPool(10, 4)
    scheduler, made = Scheduler(pool, 1), requests([5, 2])
    for request in made:
        scheduler.add(request)
    return pool, scheduler, made, scheduler.schedule(0)


def test_a_cancelled_request_leaves_slot_and_blocks_after_the_pass(passing):
    pool, scheduler, made, plan = passing
    scheduler.cancel(made[0])
    assert pool.free_blocks == 9  # the pass may be writing into them
    assert commit(scheduler, plan, [[7]], 1) == [] and made[0].times == []  # its token came too late
    assert pool.free_blocks == 10 and made[0].status is Status.CANCELLED
    assert [row.seq for row in scheduler.schedule(1).rows] == [made[1]]
    scheduler.cancel(made[0])  # twice does no harm


@pytest.mark.parametrize("policy", [Static, lambda: Dynamic(window=0.0)], ids=["static", "dynamic"])
def test_a_static_batch_is_filled_over_several_steps_if_its_prompts_exceed_the_token_budget(policy):
    made = requests([3, 3, 3, 3], prompt=5)
    log = run(made, max_num_seqs=4, policy=policy(), max_num_batched_tokens=10)
    assert chart(log) == [{0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {2, 3}, {3}]
    chunked = run(
        requests([9] * 4, prompt=5), 4, policy=policy(), max_num_batched_tokens=4, enable_chunked_prefill=True
    )
    assert max(map(len, chart(chunked))) == 4


def test_who_arrives_after_a_batch_has_started_does_not_join_it():
    made = requests([4, 4, 1], arrivals=[0, 0, 1.5])
    assert chart(run(made, max_num_seqs=4, policy=Dynamic(window=0.5))) == [{0, 1}] * 4 + [{2}]
