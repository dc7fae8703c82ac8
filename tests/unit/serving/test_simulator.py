"""The virtual clock, what a pass commits, prefixes, and the loop around it."""

import pytest

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.cost import LinearCost, Load
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import serve
from lessons_lib.serving.scheduler import Continuous, Plan, Scheduler, Static
from lessons_lib.serving.simulator import Simulator, load_of, simulate, steps
from lessons_lib.serving.workload import Conversations


def request(prompt, computed=0, emitted=0):
    made = Sequence(0, 0, prompt, 100)
    made.num_computed_tokens, made.num_output_tokens = computed, emitted
    return made


def test_a_load_counts_prompts_and_decoding_sequences_apart():
    assert load_of(Plan([(request(4), 4)])) == Load(4, 1 + 2 + 3 + 4, 1, 0, 0)
    assert load_of(Plan([(request(4, 1), 2)])) == Load(2, 2 + 3, 1, 0, 0)  # a chunk attends to what is cached
    assert load_of(Plan([(request(4, 6, 3), 1)])) == Load(0, 0, 0, 1, 7)
    assert load_of(Plan([(request(4, 6, 3), 3)])) == Load(0, 0, 0, 3, 9)  # two draft tokens
    assert load_of(Plan([(request(4, 0, 3), 7)])) == Load(7, 28, 1, 0, 0)  # preempted: rebuilt as a prompt
    assert load_of(Plan([], idle=[request(4, 6, 3)])) == Load(0, 0, 0, 1, 7)
    assert load_of(Plan([], idle=[request(4, 6, 3)]), padded=False) == Load()
    assert load_of(Plan([(request(4), 4), (request(4, 6, 3), 1)])) == Load(4, 10, 1, 1, 7)


def test_the_clock_advances_by_the_cost_of_each_pass_and_jumps_over_idle_time():
    log = simulate(
        [Sequence(0, 1.0, 10, 3), Sequence(1, 100.0, 20, 1)],
        Scheduler(BlockPool(100)),
        LinearCost(step=0.5, prefill_token=0.1, decode_token=0.25),
    )
    assert log.requests[0].times == [2.5, 3.25, 4.0]
    assert log.requests[1].times == [102.5]


def test_what_arrives_during_a_pass_joins_the_next():
    log = simulate([Sequence(0, 0, 1, 3), Sequence(1, 0.5, 1, 1)], Scheduler(BlockPool(9)), LinearCost(step=1.0))
    assert log.requests[1].admitted == 1.0 and log.requests[1].times == [2.0]


def test_the_workload_can_be_served_again():
    made = [Sequence(0, 0, 4, 2, ids=[1, 2, 3, 4])]
    first = simulate(made, Scheduler(BlockPool(9)), LinearCost(step=1.0))
    again = simulate(made, Scheduler(BlockPool(9)), LinearCost(step=1.0))
    assert made[0].status is Status.WAITING and made[0].ids == [1, 2, 3, 4]
    assert first.requests[0].times == again.requests[0].times and first.requests[0].ids == [1, 2, 3, 4, 0, 0]


@pytest.mark.parametrize("right, passes", [(0, 9), (1, 5), (2, 4), (3, 3)])
def test_a_pass_may_commit_several_tokens(right, passes):
    """Nine tokens: the first from the prompt, then 1 + accepted draft tokens a pass."""
    scheduler = Scheduler(BlockPool(9), num_speculative_tokens=3)
    log = simulate([Sequence(0, 0, 4, 9)], scheduler, LinearCost(step=1.0), accepted=lambda request, drafted: right)
    assert len(log.iterations) == passes and len(log.requests[0].times) == 9
    assert log.iterations[1].shares[0].fed == 4 and not log.iterations[1].shares[0].prefill


def test_later_turns_of_a_chat_find_their_history_cached():
    chats = Conversations(count=2, turns=3, system=40, pause=1000.0).requests()
    log = simulate(chats, Scheduler(BlockPool(1000, 16), 8), LinearCost(step=0.01))
    first, second, third = log.requests[:3]
    for turn, before in ((second, first), (third, second)):
        history = before.prompt_length + before.output_length - 1  # the last token of an answer was never fed
        assert turn.reused == history // 16 * 16
    assert log.requests[3].reused == 0  # both chats began in the same pass
    assert (
        sum(
            r.reused for r in simulate(chats, Scheduler(BlockPool(1000, sharing=False)), LinearCost(step=0.01)).requests
        )
        == 0
    )


def test_a_log_gives_the_loads_and_seconds_that_a_cost_model_is_fitted_to():
    cost = LinearCost(step=1.0, prefill_token=0.5)
    log = simulate([Sequence(0, 0, 4, 3)], Scheduler(BlockPool(9)), cost)
    assert steps(log) == [(Load(4, 10, 1, 0, 0), 3.0), (Load(0, 0, 0, 1, 5), 1.0), (Load(0, 0, 0, 1, 6), 1.0)]
    made = [Sequence(i, i, 7 + i, 4 + i) for i in range(9)]
    log = simulate(
        made, Scheduler(BlockPool(9, 8), 3, max_num_batched_tokens=9, chunked=True, num_speculative_tokens=1), cost
    )
    assert [cost.seconds(work) for work, _ in steps(log)] == pytest.approx([seconds for _, seconds in steps(log)])


@pytest.mark.parametrize("padded, end", [(True, 10.0), (False, 8.0)])
def test_held_sequences_cost_time_only_where_batches_are_padded(padded, end):
    """Outputs 1 and 3 in a static batch: two passes run beside a finished sequence."""
    made = [Sequence(0, 0, 1, 1), Sequence(1, 0, 1, 3)]
    cost, scheduler = LinearCost(step=2.0, decode_token=1.0), Scheduler(BlockPool(9), 2, Static())
    assert simulate(made, scheduler, cost, padded=padded).iterations[-1].end == end


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


def test_serving_nobody_is_an_empty_log():
    assert simulate([], Scheduler(BlockPool(9)), LinearCost(step=1.0)).iterations == []


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
