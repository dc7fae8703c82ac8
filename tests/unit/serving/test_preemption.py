"""Who must leave and who owns which blocks: preemption, reserving, truncating, admitting and cancelling."""

import pytest
from support.schedules import UNIT, chart, commit, requests, run

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.scheduler import Continuous, Scheduler
from lessons_lib.serving.simulator import simulate


def test_the_newest_is_preempted_when_no_block_is_free_and_starts_again():
    made = [Sequence(0, 0, 4, 5), Sequence(1, 0, 4, 5)]  # each grows to 8 tokens: 2 blocks of 4; the pool has 3
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

    scheduler, made = Scheduler(BlockPool(3, 4), 2, Fickle(), watermark=0), requests([5, 5], prompt=4)
    for request in made:
        scheduler.add(request)
    scheduler.policy.calls = 1
    commit(scheduler, scheduler.schedule(0), [[1], [1]], 1)
    scheduler.policy.calls = 0
    plan = scheduler.schedule(1)
    assert len(plan.rows) == 1 and plan.preempted == [made[0]] and plan.rows[0][0] is made[1]


def test_a_preempted_request_comes_before_those_that_arrived_with_it():
    log = run(requests([9, 9, 2], prompt=4), blocks=5, watermark=0)
    assert log.requests[1].preemptions == 1 and [share.id for share in log.iterations[9].shares] == [1, 2]


def test_a_preempted_request_that_finds_its_text_cached_has_room_for_guesses_at_once():
    pool = BlockPool(6, block_size=2)
    scheduler = Scheduler(pool, num_speculative_tokens=2)
    request, other = Sequence(0, 0, 4, 5, ids=[1, 2, 3, 4]), Sequence(1, 0, 8)
    scheduler.add(request)
    commit(scheduler, scheduler.schedule(0), [[5]], 1)
    pool.allocate(other, 8)
    assert scheduler.schedule(1).preempted == [request] and request.num_computed_tokens == 0  # it found no room at once
    pool.release(other)
    assert scheduler.schedule(2).rows == [(request, 3)] and request.reused == 4
    assert len(request.block_table) == 4  # 4 cached tokens, the newest and two guesses


def test_a_request_admitted_again_adds_what_it_finds_and_keeps_when_it_was_admitted_first():
    pool, other = BlockPool(8, block_size=2), Sequence("other", 0, 99)
    scheduler = Scheduler(pool, 1)
    first, second = (Sequence(n, 0, output_length=n, ids=list(range(4 + n))) for n in (1, 2))
    for request, token in ((first, 5), (second, 7)):
        scheduler.add(request)
        commit(scheduler, scheduler.schedule(request.output_length), [[token]], 2)
    assert second.reused == 4 and pool.allocate(other, 2 * pool.free_blocks)
    assert scheduler.schedule(3).preempted == [second]
    pool.release(other)
    assert scheduler.schedule(4).rows == [(second, 1)] and second.reused == 4 + 6 and second.admitted == 2


@pytest.mark.parametrize("reserve, guesses, at_once", [
    ("max", 0, 2), ("oracle", 0, 3), ("max", 2, 1), ("oracle", 2, 2), ("oracle", 6, 1),
])  # fmt: skip
def test_reserving_the_whole_length_never_preempts_and_admits_fewer(reserve, guesses, at_once):
    """4 + 9 - 1 = 12 tokens are reserved or 4 + 5 - 1 = 8, and draft tokens: 2, 3 or 4 of 6 blocks of 4 tokens."""
    made = [Sequence(i, 0, 4, 5, max_tokens=9) for i in range(4)]
    log = run(made, max_num_seqs=4, blocks=6, reserve=reserve, watermark=0, num_speculative_tokens=guesses)
    assert usage(log).preemptions == 0
    assert max(len(i.shares) for i in log.iterations) == at_once
    assert max(len(i.shares) for i in run(made, max_num_seqs=4, blocks=6, watermark=0).iterations) == 4


def test_an_oracle_knows_that_the_limit_ends_a_text_too():
    log = run([Sequence(i, 0, 4, 1000, max_tokens=2) for i in range(2)], blocks=4, reserve="oracle", watermark=0)
    assert [request.num_output_tokens for request in log.requests] == [2, 2]
    assert log.iterations[0].used_blocks == 4  # 4 + 2 - 1 tokens each


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("reserve, owned, kept", [("none", 6, 2), ("max", 8, 8)])
def test_room_for_rejected_guesses_is_given_back_and_what_was_reserved_is_not(sharing, reserve, owned, kept):
    scheduler = Scheduler(BlockPool(20, 4, sharing), 1, reserve=reserve, num_speculative_tokens=16)
    scheduler.add(Sequence(0, 0, 4, 12, ids=[1, 2, 3, 4]))
    commit(scheduler, scheduler.schedule(0), [[7]], 1)
    plan = scheduler.schedule(1)
    assert plan.rows[0][1] == 17
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


def test_a_cancelled_request_leaves_slot_and_blocks_after_the_forward():
    pool = BlockPool(10, 4)
    scheduler, made = Scheduler(pool, 1), requests([5, 2])
    for request in made:
        scheduler.add(request)
    plan = scheduler.schedule(0)
    scheduler.cancel(made[0])
    assert pool.free_blocks == 9  # the forward may be writing into them
    assert commit(scheduler, plan, [[7]], 1) == [] and made[0].times == []  # its token came too late
    assert pool.free_blocks == 10 and made[0].status is Status.CANCELLED
    assert [request for request, _ in scheduler.schedule(1).rows] == [made[1]]
    scheduler.cancel(made[0])  # twice does no harm


def test_a_request_that_waits_can_be_cancelled():
    scheduler, made = Scheduler(BlockPool(10, 4), 1), requests([5, 2])
    for request in made:
        scheduler.add(request)
    scheduler.cancel(made[0])
    assert made[0].status is Status.CANCELLED and scheduler.waiting == made[1:]
    assert [request for request, _ in scheduler.schedule(0).rows] == [made[1]]


def test_a_request_cancelled_without_a_run_leaves_alone_what_a_forward_may_be_writing():
    pool = BlockPool(10, 4)
    scheduler, made = Scheduler(pool, 1), requests([5, 2])
    for request in made:
        scheduler.add(request)
    plan = scheduler.schedule(0)
    scheduler.cancel(made[0])
    scheduler.cancel(made[1])
    assert [request.status for request in made] == [Status.RUNNING, Status.CANCELLED] and pool.free_blocks == 9
    assert commit(scheduler, plan, [[7]], 1) == [] and pool.free_blocks == 10


def test_who_must_leave_is_asked_with_the_time_it_is():
    class Watching(Continuous):
        seen = []

        def order(self, requests, now):
            self.seen.append(now)
            return requests

    run([Sequence(0, 0, 4, 5), Sequence(1, 0, 4, 5)], blocks=3, watermark=0, policy=Watching())
    assert None not in Watching.seen and 1.0 in Watching.seen  # when the second forward found no block
