"""The simulator: its clock and loads, and queues whose waiting times are known from theory."""

import math
from random import Random
from statistics import fmean

import pytest

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.cost import LinearCost, Load
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.scheduler import Plan, Row, Scheduler, Static
from lessons_lib.serving.simulator import load_of, simulate, steps
from lessons_lib.serving.workload import Conversations, Poisson


def request(prompt, computed=0, emitted=0):
    made = Sequence(0, 0, prompt, 100)
    made.num_computed_tokens, made.num_output_tokens = computed, emitted
    return made


def test_a_load_counts_prompts_and_decoding_sequences_apart():
    assert load_of(Plan([Row(request(4), 4)])) == Load(4, 1 + 2 + 3 + 4, 1, 0, 0)
    assert load_of(Plan([Row(request(4, 1), 2)])) == Load(2, 2 + 3, 1, 0, 0)  # a chunk attends to what is cached
    assert load_of(Plan([Row(request(4, 6, 3), 1)])) == Load(0, 0, 0, 1, 7)
    assert load_of(Plan([Row(request(4, 6, 3), 3)])) == Load(0, 0, 0, 3, 9)  # two draft tokens
    assert load_of(Plan([Row(request(4, 0, 3), 7)])) == Load(7, 28, 1, 0, 0)  # preempted: rebuilt as a prompt
    assert load_of(Plan([], idle=[request(4, 6, 3)])) == Load(0, 0, 0, 1, 7)
    assert load_of(Plan([], idle=[request(4, 6, 3)]), padded=False) == Load()
    assert load_of(Plan([Row(request(4), 4), Row(request(4, 6, 3), 1)])) == Load(4, 10, 1, 1, 7)


def test_the_clock_advances_by_the_cost_of_each_pass_and_jumps_over_idle_time():
    log = simulate(
        [Sequence(0, 1.0, 10, 3), Sequence(1, 100.0, 20, 1)],
        Scheduler(BlockPool(100)),
        LinearCost(step=0.5, prefill_token=0.1, decode_token=0.25),
    )
    assert log.requests[0].times == [2.5, 3.25, 4.0]
    assert log.requests[1].times == [102.5]


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


def test_no_draft_token_is_fed_beyond_the_end_of_the_text():
    scheduler = Scheduler(BlockPool(9), num_speculative_tokens=3)
    log = simulate([Sequence(0, 0, 4, 2)], scheduler, LinearCost(decode_token=1.0))
    assert log.iterations[1].shares[0].fed == 1 and log.iterations[1].end == 1.0


def test_later_turns_of_a_chat_find_their_history_cached():
    chats = Conversations(count=2, turns=3, system=40, pause=1000.0).requests()
    log = simulate(chats, Scheduler(BlockPool(1000, 16), 8), LinearCost(step=0.01))
    first, second, third = log.requests[:3]
    for turn, before in ((second, first), (third, second)):
        history = before.prompt_length + before.output_length - 1  # the last token of an answer was never fed
        assert turn.reused == history // 16 * 16
    assert log.requests[3].reused == 0  # both chats began in the same pass
    apart = simulate(chats, Scheduler(BlockPool(1000, enable_prefix_caching=False)), LinearCost(step=0.01))
    assert not any(request.reused for request in apart.requests)


def test_a_log_gives_the_loads_and_seconds_that_a_cost_model_is_fitted_to():
    cost = LinearCost(step=1.0, prefill_token=0.5)
    log = simulate([Sequence(0, 0, 4, 3)], Scheduler(BlockPool(9)), cost)
    assert steps(log) == [(Load(4, 10, 1, 0, 0), 3.0), (Load(0, 0, 0, 1, 5), 1.0), (Load(0, 0, 0, 1, 6), 1.0)]
    made = [Sequence(i, i, 7 + i, 4 + i) for i in range(9)]
    chunks = dict(max_num_batched_tokens=9, enable_chunked_prefill=True, num_speculative_tokens=1)
    log = simulate(made, Scheduler(BlockPool(9, 8), 3, **chunks), cost)
    assert [cost.seconds(work) for work, _ in steps(log)] == pytest.approx([seconds for _, seconds in steps(log)])


@pytest.mark.parametrize("padded, end", [(True, 10.0), (False, 8.0)])
def test_held_sequences_cost_time_only_where_batches_are_padded(padded, end):
    """Outputs 1 and 3 in a static batch: two passes run beside a finished sequence."""
    made = [Sequence(0, 0, 1, 1), Sequence(1, 0, 1, 3)]
    cost, scheduler = LinearCost(step=2.0, decode_token=1.0), Scheduler(BlockPool(9), 2, Static())
    assert simulate(made, scheduler, cost, padded=padded).iterations[-1].end == end


@pytest.mark.parametrize("padded, end", [(True, 5.0), (False, 1.0)])
def test_a_batch_that_is_held_though_all_have_finished_takes_time_only_where_it_is_padded(padded, end):
    scheduler = Scheduler(BlockPool(9), 2, Static(steps=5))
    log = simulate([Sequence(0, 0, 4, 1)], scheduler, LinearCost(step=1.0), padded=padded)
    assert len(log.iterations) == 5 and log.iterations[-1].end == end


QUEUED, WARM_UP = 40_000, 4_000

# a prompt token is a millisecond of service, and one output token ends it
MILLISECONDS = LinearCost(prefill_token=1e-3)


def waits(rate, service):
    """(waiting times, times in system) after the warm-up, of Poisson arrivals with services from service(rng)."""
    rng = Random(1)
    times = Poisson(rate).times(QUEUED, rng)
    made = [Sequence(i, time, max(1, round(1000 * service(rng)))) for i, time in enumerate(times)]
    log = simulate(made, Scheduler(BlockPool(10**9, 1), max_num_seqs=1), MILLISECONDS)
    late = log.requests[WARM_UP:]
    return [r.admitted - r.arrival for r in late], sorted(r.finished - r.arrival for r in late)


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
    """M/M/2 at 3/4 load, Erlang C: W_q = 1.2857 services. A service is so many passes of one token, 20 on average."""
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


def test_littles_law_holds_exactly_on_a_finite_run():
    """The number in the system, summed over time, is the sum of the times in it."""
    made = [Sequence(i, 0, 1, n) for i, n in enumerate([5, 1, 1, 2, 3])]
    log = simulate(made, Scheduler(BlockPool(100), 2), LinearCost(step=1.0))
    counted = sum((i.waiting + len(i.shares)) * (i.end - i.start) for i in log.iterations)
    assert counted == sum(r.finished - r.arrival for r in log.requests) == 19
