"""The engine: every request is answered as if it ran alone, whatever the scheduler and the other requests do."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.benches import Letters
from support.examples import examples
from support.serving import KINDS, LENGTHS, PREFIX, PROMPTS, TARGET, alone, arguments_of, together
from support.targets import decoder_target

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.measure.cost import LinearCost
from lessons_lib.models import tiny
from lessons_lib.quantization import quantize_model
from lessons_lib.serving import engine as engine_module
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine, paged
from lessons_lib.serving.paged_target import paged_step
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, ShortestFirst, Static
from lessons_lib.serving.simulator import simulate


@pytest.mark.parametrize("setting", [
    dict(),
    dict(max_num_seqs=1),
    dict(max_num_seqs=8, num_speculative_tokens=4),
    dict(max_num_seqs=3, num_speculative_tokens=40),
    dict(policy=ShortestFirst()),
    dict(policy=Static()),
    dict(policy=Dynamic(window=0.001)),
    dict(mixed=False),
    dict(reserve="max"),
    dict(max_num_batched_tokens=7, chunked=True),
    dict(max_num_batched_tokens=30, chunked=True, num_speculative_tokens=4),
], ids=lambda setting: str(setting).split(" object at")[0])  # fmt: skip
def test_every_request_is_answered_as_if_it_ran_alone(setting):
    together(Scheduler(BlockPool(80, 4), **{"max_num_seqs": 4} | setting))


@pytest.mark.parametrize(
    "setting", [dict(), dict(max_num_batched_tokens=8, chunked=True), dict(num_speculative_tokens=4)], ids=str
)
@pytest.mark.parametrize("sharing", [False, True])
def test_preempted_requests_are_answered_as_if_they_ran_alone(setting, sharing):
    requests, log = together(Scheduler(BlockPool(11, 3, sharing=sharing), max_num_seqs=4, watermark=0.0, **setting))
    assert sum(request.preemptions for request in requests) > 0
    assert sum(len(step.preempted) for step in log.iterations) == sum(request.preemptions for request in requests)


def test_a_pool_that_just_fits_the_longest_request_serves_them_all():
    together(Scheduler(BlockPool(25, 1), max_num_seqs=4))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_decoder_with_rounded_matrices_is_served_as_it_decodes_alone(compiled):
    rounded = DecoderTarget(quantize_model(TARGET.decoder, "int3 g16"))  # whose wide weights are gone
    scheduler = Scheduler(BlockPool(40, 4))
    target = paged(rounded, scheduler.pool, 2 if compiled else None)
    if compiled:  # as the compiler is given it
        known = {"problem": None, "seconds": 0.0}
        target.step = type("Step", (), known | {"__call__": staticmethod(paged_step(rounded.decoder))})()
    engine = Engine(target, scheduler)
    requests = [engine.request(prompt, max_new_tokens=9) for prompt in PROMPTS[:4]]
    engine.serve(requests)
    for request, prompt in zip(requests, PROMPTS, strict=False):
        assert engine.output(request).ids == generate(rounded, prompt, max_new_tokens=9).ids


@pytest.mark.parametrize("padded", [False, True])
def test_where_rows_are_a_rectangle_who_has_finished_is_still_a_row(padded, monkeypatch):
    """Outputs 1 and 3 in a static batch: two forwards run beside a finished row."""
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4), 2, Static()), padded)
    widths, run = [], engine.target.run
    monkeypatch.setattr(engine.target, "run", lambda blocks: widths.append(len(blocks)) or run(blocks))
    requests = [engine.request(PREFIX, max_new_tokens=count) for count in (1, 3)]
    engine.serve(requests)
    assert widths == ([2, 2, 2] if padded else [2, 1, 1])
    assert [engine.output(r).ids for r in requests] == [alone("plain", PREFIX, count) for count in (1, 3)]
    assert engine.target.memory.keys[0][-1].isfinite().all()


def test_a_batch_that_is_held_though_all_have_finished_is_paid_for(monkeypatch):
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(20, 4), 2, Static(steps=3)), padded=True)
    widths, run = [], engine.target.run
    monkeypatch.setattr(engine.target, "run", lambda blocks: widths.append(len(blocks)) or run(blocks))
    engine.serve([engine.request(PREFIX, max_new_tokens=1)])
    assert widths == [1, 1, 1] and scheduler.unfinished == 0


def test_shared_prefixes_are_not_computed_again():
    shared, _ = together(Scheduler(BlockPool(80, 4), max_num_seqs=2), kinds=["plain"])
    assert [request.reused for request in shared] == [0, 0, 8, 0, 8, 8, 0, 0]
    apart, _ = together(Scheduler(BlockPool(80, 4, sharing=False), max_num_seqs=2), kinds=["plain"])
    assert sum(request.reused for request in apart) == 0


def test_the_next_turn_of_a_talk_finds_the_answer_to_the_last_one_in_the_cache():
    engine = Engine(TARGET, Scheduler(BlockPool(40, 4)))
    first = engine.request(PREFIX, max_new_tokens=9)
    engine.serve([first])
    prompt = [*PREFIX, *engine.output(first).ids, 5, 6]
    second = engine.request(prompt, max_new_tokens=9)
    engine.serve([second])
    assert second.reused == 16  # 18 of the first 19 tokens were fed
    assert engine.output(second).ids == alone("plain", prompt, 9)


@examples(25)
@given(st.data())
def test_any_mix_of_requests_and_settings_answers_each_as_if_alone(data):
    size = data.draw(st.integers(1, 5), "block size")
    setting = data.draw(st.sampled_from([
        dict(), dict(policy=Static()), dict(policy=ShortestFirst()), dict(mixed=False), dict(reserve="max"),
        dict(max_num_batched_tokens=12, chunked=True),
    ]))  # fmt: skip
    least = -(-(36 + 2) // size)  # the longest prompt and output, and two guesses
    pool = BlockPool(least + data.draw(st.integers(0, 20), "more blocks"), size, data.draw(st.booleans(), "sharing"))
    guesses = data.draw(st.integers(0, 2), "guesses")
    ids = st.lists(st.sampled_from([3, 7]), min_size=1, max_size=20)
    prompts = data.draw(st.lists(ids, min_size=1, max_size=6), "prompts")
    lengths = [data.draw(st.integers(1, 17)) for _ in prompts]
    kinds = data.draw(st.permutations(KINDS))
    slots = data.draw(st.integers(1, 4), "slots")
    together(
        Scheduler(pool, max_num_seqs=slots, num_speculative_tokens=guesses, **setting),
        kinds,
        prompts,
        lengths,
        (0.0, 0.001),
    )


def test_the_schedule_is_the_simulators_step_for_step():
    make = lambda: Scheduler(BlockPool(14, 3), max_num_seqs=4, max_num_batched_tokens=9, chunked=True, watermark=0.0)  # noqa: E731
    requests, log = together(make(), kinds=["plain"])
    replies = [alone("plain", prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    same = [Sequence(r.id, ids=prompt, output_length=len(reply), reply=reply)
            for r, prompt, reply in zip(requests, PROMPTS, replies, strict=True)]  # fmt: skip
    simulated = simulate(same, make(), LinearCost(step=1.0))
    assert [step._replace(start=0, end=0) for step in log.iterations] == [
        step._replace(start=0, end=0) for step in simulated.iterations
    ]
    assert sum(request.preemptions for request in requests) > 0


def test_guesses_save_forwards_where_lookahead_leaves_room_for_them():
    steps = {}
    for guesses in (0, 2, 40):
        _, log = together(Scheduler(BlockPool(80, 4), max_num_seqs=4, num_speculative_tokens=guesses), kinds=["tree"])
        steps[guesses] = len(log.iterations)
        assert all(share.fed <= 1 + guesses for step in log.iterations for share in step.shares if not share.prefill)
    assert steps[40] < steps[2] < steps[0]  # a wide tree is cut to the two tokens that fit
    _, log = together(
        Scheduler(BlockPool(80, 4), max_num_seqs=4, num_speculative_tokens=2), kinds=["lookup"], prompts=[PREFIX] * 4
    )
    assert max(share.fed for step in log.iterations for share in step.shares if not share.prefill) == 3


def test_a_text_ends_where_it_would_alone_and_its_slot_is_free_at_once():
    text = alone("plain", PREFIX, 20)
    target = decoder_target(tiny(), eos=(text[5],))
    want = generate(target, PREFIX, max_new_tokens=20), generate(target, PREFIX, max_new_tokens=20, min_new_tokens=9)
    engine = Engine(target, Scheduler(BlockPool(20, 4), max_num_seqs=2))
    requests = [engine.request(PREFIX, max_new_tokens=20, min_new_tokens=least) for least in (0, 9)]
    engine.serve(requests)
    for request, one in zip(requests, want, strict=True):
        out = engine.output(request)
        assert (out.ids, out.finish) == (one.ids, one.finish)
        assert len(request.times) == request.num_output_tokens == len(out.ids)
    assert want[0].finish == "eos" and len(want[0].ids) < len(want[1].ids)


def test_a_stop_text_ends_a_request_where_generate_ends_it():
    """Single characters: the model's own text, cut where two of them come together for the first time."""
    target = DecoderTarget(TARGET.decoder, Letters())
    text = generate(target, PREFIX, max_new_tokens=20).text
    stop = text[6:8]
    engine = Engine(target, Scheduler(BlockPool(40, 4), max_num_seqs=2))
    requests = [engine.request(PREFIX, max_new_tokens=20, stop=one) for one in (stop, None)]
    engine.serve(requests)
    for request, one in zip(requests, (stop, None), strict=True):
        out, want = engine.output(request), generate(target, PREFIX, max_new_tokens=20, stop=one)
        assert (out.ids, out.text, out.finish) == (want.ids, want.text, want.finish)
    first, second = map(engine.output, requests)
    assert first.finish == "stop" and second.finish == "length" and second.text == text
    assert len(first.ids) < 20 and first.text == text[: text.find(stop)]


class Failing(Proposer):
    """Raises when it is asked the second time."""

    def __init__(self, error):
        self.asked, self.error = 0, error

    def propose(self, ids, tree):
        self.asked += 1
        if self.asked == 2:
            raise self.error
        return super().propose(ids, tree)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("policy", [Continuous(), Static()])
def test_an_exception_ends_a_run_and_the_engine_serves_the_next(error, policy):
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4), 3, policy))
    requests = [engine.request(PREFIX, max_new_tokens=9, proposer=Failing(error))]
    requests += [engine.request(PROMPTS[1], max_new_tokens=n) for n in (1, 9, 9)]
    with pytest.raises(type(error)):
        engine.serve(requests)
    assert [r.status.value for r in requests] == ["cancelled", "finished", "cancelled", "cancelled"]
    assert requests[1].finished > 0  # also where its batch held it
    assert engine.pool.free_blocks == 20 and engine.scheduler.empty
    assert len(engine.output(requests[0]).ids) == 2
    engine.serve([again := engine.request(PREFIX, max_new_tokens=9)])
    assert engine.output(again).ids == alone("plain", PREFIX, 9)
    engine.pool.clear()  # for another engine


def test_while_it_serves_what_was_there_before_is_spared_the_collector():
    engine, seen = Engine(TARGET, Scheduler(BlockPool(20, 4))), []
    engine.serve([engine.request(PREFIX, max_new_tokens=2, on_tokens=lambda new: seen.append(gc.get_freeze_count()))])
    assert len(seen) == 2 and min(seen) > 0 == gc.get_freeze_count()


def test_forked_rows_go_on_alike_each_on_a_copy_of_its_own(monkeypatch):
    """Two ways to continue one text share all its blocks, the last of them half-filled."""
    pool = BlockPool(20, 4)
    engine = Engine(TARGET, scheduler := Scheduler(pool))
    copied, copy = [], engine.target.memory.copy
    monkeypatch.setattr(engine.target.memory, "copy", lambda *blocks: copied.append(blocks) or copy(*blocks))
    scheduler.add(parent := engine.request(PREFIX, max_new_tokens=9))
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, engine.run(plan), 0.0)
    child = engine.request(list(parent.ids), max_new_tokens=8)
    monkeypatch.setattr(pool, "match", lambda request: pool.fork(parent, request) or parent.num_computed_tokens)
    scheduler.add(child)
    while scheduler.unfinished:
        plan = scheduler.schedule(0.0)
        scheduler.commit(plan, engine.run(plan), 0.0)
    assert len(copied) == 1 and pool.copies == [] and child.reused == len(PREFIX)
    assert engine.output(parent).ids == parent.ids[len(PREFIX) :] == alone("plain", PREFIX, 9)
    assert child.ids == parent.ids and pool.free_blocks == 20


def test_rejected_guesses_leave_no_blocks_behind():
    """After each forward the request owns what its text needs, and no longer the room of 40 guesses."""
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(80, 4), num_speculative_tokens=40))
    scheduler.add(one := engine.request(PREFIX, **arguments_of("tree", PREFIX, 9)))
    owned = []
    while scheduler.unfinished:
        plan = scheduler.schedule(0.0)
        owned.append(80 - engine.pool.free_blocks)
        if not scheduler.commit(plan, engine.run(plan), 0.0):
            assert 80 - engine.pool.free_blocks <= -(-one.num_tokens // 4)
    assert max(owned) > 10 and engine.output(one).ids == alone("plain", PREFIX, 9)


def test_every_forward_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(engine_module, "sync", waited.append)
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4)))
    log = engine.serve([engine.request(PREFIX, max_new_tokens=5)])
    assert waited == [engine.target.device] * len(log.iterations)


@pytest.mark.parametrize("until, slept", [(9.0, engine_module.MOMENT), (2.01, 0.01), (1.0, 0.0)])
def test_waiting_sleeps_until_the_time_comes_a_moment_at_most_and_never_backwards(until, slept, monkeypatch):
    asked, engine = [], object.__new__(Engine)
    monkeypatch.setattr(engine_module.time, "sleep", asked.append)
    monkeypatch.setattr(Engine, "now", lambda self: 2.0)
    engine.wait(until)
    assert asked == [pytest.approx(slept)]
