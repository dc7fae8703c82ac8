"""The engine: every request is answered as if it ran alone, whatever the scheduler and the other requests do."""

from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.benches import Letters
from support.examples import examples
from support.serving import KINDS, LENGTHS, PREFIX, PROMPTS, TARGET, alone, arguments_of, together
from support.targets import decoder_target

from lessons_lib.caches import Streaming
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.early_exit import EarlyExit
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.decoding.targets import CompiledStreamingTarget, DecoderTarget, StreamingTarget
from lessons_lib.decoding.text import TextStream
from lessons_lib.measure.cost import LinearCost
from lessons_lib.models import tiny
from lessons_lib.quantization import quantize_model
from lessons_lib.serving import engine as engine_module
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine, paged
from lessons_lib.serving.paged_target import paged_step
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, Static
from lessons_lib.serving.simulator import simulate


@pytest.mark.parametrize("setting", [
    dict(),
    dict(max_num_seqs=1),
    dict(max_num_seqs=8, num_speculative_tokens=4),
    dict(max_num_seqs=3, num_speculative_tokens=40),
    dict(policy=Static()),
    dict(policy=Dynamic(window=0.001)),
    dict(mixed=False),
    dict(reserve="max"),
    dict(max_num_batched_tokens=7, enable_chunked_prefill=True),
    dict(max_num_batched_tokens=30, enable_chunked_prefill=True, num_speculative_tokens=4),
], ids=lambda setting: str(setting).split(" object at")[0])  # fmt: skip
def test_every_request_is_answered_as_if_it_ran_alone(setting):
    together(Scheduler(BlockPool(80, 4), **{"max_num_seqs": 4} | setting))


@pytest.mark.parametrize(
    "setting",
    [dict(), dict(max_num_batched_tokens=8, enable_chunked_prefill=True), dict(num_speculative_tokens=4)],
    ids=str,
)
@pytest.mark.parametrize("sharing", [False, True])
def test_preempted_requests_are_answered_as_if_they_ran_alone(setting, sharing):
    requests, log = together(
        Scheduler(BlockPool(11, 3, enable_prefix_caching=sharing), max_num_seqs=4, watermark=0.0, **setting)
    )
    assert sum(request.preemptions for request in requests) > 0
    assert sum(len(step.preempted) for step in log.iterations) == sum(request.preemptions for request in requests)


@pytest.mark.parametrize(
    "pool, setting",
    [
        (BlockPool(80, 4), dict(num_speculative_tokens=4)),
        (BlockPool(80, 4), dict(num_speculative_tokens=2, max_num_batched_tokens=12, enable_chunked_prefill=True)),
        (BlockPool(13, 3), dict(num_speculative_tokens=4, watermark=0.0)),
        (BlockPool(13, 3, enable_prefix_caching=False), dict(num_speculative_tokens=4, watermark=0.0)),
    ],
    ids=["draft", "chunked prompts", "preempted", "preempted without sharing"],
)
def test_requests_that_draft_with_the_first_layers_are_answered_as_if_they_ran_alone(pool, setting):
    requests, _ = together(Scheduler(pool, max_num_seqs=4, **setting), kinds=["early-exit", "early-exit", "plain"])
    steps = [step for request in requests for step in request.stats]
    assert sum(step.proposed > step.accepted for step in steps) > 4 and sum(step.accepted for step in steps) > 4
    assert "watermark" not in setting or any(request.preemptions for request in requests)


def test_a_compiled_engine_refuses_to_draft_with_the_first_layers():
    engine = Engine(paged(TARGET, pool := BlockPool(8, 4), 2), Scheduler(pool))
    with pytest.raises(ValueError, match="EarlyExit needs layer ranges, which CompiledPagedTarget does not offer"):
        engine.request(PREFIX, proposer=EarlyExit(1))


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
def test_a_padded_batch_still_computes_finished_sequences(padded, monkeypatch):
    """Outputs 1 and 3 in a static batch: two passes run beside a finished sequence."""
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
    apart, _ = together(Scheduler(BlockPool(80, 4, enable_prefix_caching=False), max_num_seqs=2), kinds=["plain"])
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
        dict(), dict(policy=Static()), dict(mixed=False), dict(reserve="max"),
        dict(max_num_batched_tokens=12, enable_chunked_prefill=True),
    ]))  # fmt: skip
    least = -(-(36 + 2) // size)  # the longest prompt and output, and two draft tokens
    pool = BlockPool(least + data.draw(st.integers(0, 20), "more blocks"), size, data.draw(st.booleans(), "sharing"))
    draft_tokens = data.draw(st.integers(0, 2), "draft tokens")
    ids = st.lists(st.sampled_from([3, 7]), min_size=1, max_size=20)
    prompts = data.draw(st.lists(ids, min_size=1, max_size=6), "prompts")
    lengths = [data.draw(st.integers(1, 17)) for _ in prompts]
    kinds = data.draw(st.permutations(KINDS))
    slots = data.draw(st.integers(1, 4), "slots")
    together(
        Scheduler(pool, max_num_seqs=slots, num_speculative_tokens=draft_tokens, **setting),
        kinds,
        prompts,
        lengths,
        (0.0, 0.001),
    )


def test_the_schedule_is_the_simulators_step_for_step():
    def make() -> Scheduler:
        chunks = dict(max_num_batched_tokens=9, enable_chunked_prefill=True)
        return Scheduler(BlockPool(14, 3), max_num_seqs=4, watermark=0.0, **chunks)

    requests, log = together(make(), kinds=["plain"])
    replies = [alone("plain", prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    same = [Sequence(r.id, ids=prompt, output_length=len(reply), reply=reply)
            for r, prompt, reply in zip(requests, PROMPTS, replies, strict=True)]  # fmt: skip
    simulated = simulate(same, make(), LinearCost(step=1.0))
    assert [step._replace(start=0, end=0) for step in log.iterations] == [
        step._replace(start=0, end=0) for step in simulated.iterations
    ]
    assert sum(request.preemptions for request in requests) > 0


def test_draft_tokens_save_passes_where_lookahead_leaves_room_for_them():
    steps = {}
    for draft_tokens in (0, 2, 40):
        _, log = together(
            Scheduler(BlockPool(80, 4), max_num_seqs=4, num_speculative_tokens=draft_tokens), kinds=["tree"]
        )
        steps[draft_tokens] = len(log.iterations)
        assert all(
            share.fed <= 1 + draft_tokens for step in log.iterations for share in step.shares if not share.prefill
        )
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
    reader = Reader()
    requests = [engine.request(PREFIX, max_new_tokens=9, proposer=Failing(error), on_tokens=reader)]
    requests += [engine.request(PROMPTS[1], max_new_tokens=n) for n in (1, 9, 9)]
    with pytest.raises(type(error)):
        engine.serve(requests)
    assert [r.status.value for r in requests] == ["cancelled", "finished", "cancelled", "cancelled"]
    assert requests[1].finished > 0  # also where its batch held it
    assert engine.pool.free_blocks == 20 and engine.scheduler.empty
    assert len(engine.output(requests[0]).ids) == 2 and reader.ended == 1
    engine.serve([again := engine.request(PREFIX, max_new_tokens=9)])
    assert engine.output(again).ids == alone("plain", PREFIX, 9)
    engine.pool.clear()  # for another engine


def test_forked_sequences_go_on_alike_each_on_a_copy_of_its_own(monkeypatch):
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


def test_rejected_draft_tokens_leave_no_blocks_behind():
    """After each pass the request owns what its text needs, and no longer the room of 40 draft tokens."""
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(80, 4), num_speculative_tokens=40))
    scheduler.add(one := engine.request(PREFIX, **arguments_of("tree", PREFIX, 9)))
    owned = []
    while scheduler.unfinished:
        plan = scheduler.schedule(0.0)
        owned.append(80 - engine.pool.free_blocks)
        if not scheduler.commit(plan, engine.run(plan), 0.0):
            assert 80 - engine.pool.free_blocks <= -(-one.num_tokens // 4)
    assert max(owned) > 10 and engine.output(one).ids == alone("plain", PREFIX, 9)


def test_every_pass_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(engine_module, "sync", waited.append)
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4)))
    log = engine.serve([engine.request(PREFIX, max_new_tokens=5)])
    assert waited == [engine.target.device] * len(log.iterations)


class Reader:
    """Collects what is streamed; does something at the n-th call, and something at the end."""

    def __init__(self, at: int = -1, then=lambda: None, at_end=lambda: None):
        self.pieces, self.ended, self.at, self.then, self.at_end = [], 0, at, then, at_end

    def __call__(self, tokens):
        self.pieces.append(list(tokens))
        if len(self.pieces) == self.at:
            self.then()

    def end(self):
        self.ended += 1
        self.at_end()


def test_tokens_are_streamed_as_they_are_committed():
    engine = Engine(TARGET, Scheduler(BlockPool(60, 4), max_num_seqs=3, num_speculative_tokens=30))
    readers = [Reader() for _ in PROMPTS]
    requests = [
        engine.request(prompt, on_tokens=reader, **arguments_of("tree", prompt, length))
        for prompt, length, reader in zip(PROMPTS, LENGTHS, readers, strict=True)
    ]
    engine.serve(requests)
    for request, reader in zip(requests, readers, strict=True):
        assert sum(reader.pieces, []) == engine.output(request).ids and reader.ended == 1
        assert [] not in reader.pieces


def test_a_cancelled_request_stops_there_and_gives_its_blocks_to_others():
    engine = Engine(TARGET, Scheduler(BlockPool(12, 4), max_num_seqs=2))
    gone = Reader(3, lambda: [engine.cancel(requests[i]) for i in (0, 2, 3)])
    requests = [engine.request(PREFIX, max_new_tokens=12, on_tokens=gone)]
    requests += [engine.request(PROMPTS[i], max_new_tokens=LENGTHS[i]) for i in (1, 2, 3, 4)]
    requests[3].arrival = 1e6  # never waited for
    engine.serve(requests)
    assert [r.status.value for r in requests] == ["cancelled", "finished", "cancelled", "cancelled", "finished"]
    assert engine.output(requests[0]).ids == sum(gone.pieces, []) == alone("plain", PREFIX, 12)[:3]
    assert engine.output(requests[0]).finish == "cancelled" and gone.ended == 1
    assert engine.output(requests[2]).ids == []
    for i in (1, 4):
        assert engine.output(requests[i]).ids == alone("plain", PROMPTS[i], LENGTHS[i])
    assert engine.pool.free_blocks == 12


def test_the_stream_of_a_cancelled_request_shows_what_it_held_back_and_takes_another_text():
    def write(piece):
        pieces.append(piece)
        if len(pieces) == 3:
            engine.cancel(gone)

    engine, pieces = Engine(DecoderTarget(TARGET.decoder, Letters()), Scheduler(BlockPool(20, 4))), []
    stream = TextStream(Letters(), write, stop="never said")  # as long as it, the end of the text is held back
    gone = engine.request(PREFIX, max_new_tokens=30, on_tokens=stream)
    engine.serve([gone])
    said = engine.output(gone).text
    assert gone.status is Status.CANCELLED and "".join(pieces) == said and len(said) > 3
    engine.serve([again := engine.request(PROMPTS[1], max_new_tokens=14, on_tokens=stream)])
    assert "".join(pieces) == said + engine.output(again).text


def test_cancelling_from_another_thread_while_a_pass_is_planned_harms_nobody_else(monkeypatch):
    """The request is in the plan already: its blocks are taken back after this pass, not during it."""
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4), max_num_seqs=4))
    requests = [engine.request(PREFIX, max_new_tokens=9), engine.request(PROMPTS[1], max_new_tokens=14)]
    run, plans = engine.run, []

    def run_while_another_thread_cancels(plan):
        plans.append(plan)
        if len(plans) == 3:
            thread = Thread(target=engine.cancel, args=[requests[0]])
            thread.start()
            thread.join()
        return run(plan)

    monkeypatch.setattr(engine, "run", run_while_another_thread_cancels)
    engine.serve(requests)
    assert [r.status for r in requests] == [Status.CANCELLED, Status.FINISHED]
    assert [len(plan.rows) for plan in plans] == [2, 2, 2] + [1] * 11
    assert engine.output(requests[1]).ids == alone("plain", PROMPTS[1], 14)
    assert engine.pool.free_blocks == 20


def test_a_request_cancelled_before_it_is_served_ends_at_once_and_never_runs(monkeypatch):
    engine, waits = Engine(TARGET, Scheduler(BlockPool(20, 4), num_speculative_tokens=4)), []
    monkeypatch.setattr(engine, "wait", waits.append)
    proposer = PromptLookup(4)
    first = engine.request(PREFIX, arrival=1e6, proposer=proposer)
    monkeypatch.setattr(engine, "start", engine.start - 1e5)  # made long ago
    engine.cancel(first)
    assert first.status is Status.CANCELLED and engine.output(first).finish == "cancelled"
    second = engine.request(PREFIX, max_new_tokens=2, proposer=proposer)  # its proposer is free again
    log = engine.serve([first, second])
    assert [r.status for r in (first, second)] == [Status.CANCELLED, Status.FINISHED] and len(log.iterations) == 2
    assert waits == []


def test_a_request_cancelled_after_the_last_pass_of_a_run_is_cancelled_when_the_run_ends(monkeypatch):
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(20, 4)))
    request, other = engine.request(PREFIX, max_new_tokens=1), engine.request(PREFIX)
    commit = scheduler.commit
    monkeypatch.setattr(scheduler, "commit", lambda *given: (commit(*given), engine.cancel(other)))
    engine.serve([request])
    assert [r.status for r in (request, other)] == [Status.FINISHED, Status.CANCELLED]


def test_a_proposer_follows_one_text_at_a_time():
    engine, proposer = Engine(TARGET, Scheduler(BlockPool(20, 4), num_speculative_tokens=4)), PromptLookup(4)
    first = engine.request(PREFIX, max_new_tokens=9, proposer=proposer)
    with pytest.raises(ValueError, match="request 0 uses this proposer; give each request its own"):
        engine.request(PROMPTS[1], proposer=proposer)
    engine.serve([first])
    engine.serve([second := engine.request(PROMPTS[1], max_new_tokens=14, proposer=proposer)])
    assert engine.output(first).ids == alone("plain", PREFIX, 9)
    assert engine.output(second).ids == alone("plain", PROMPTS[1], 14)


@pytest.mark.parametrize("tokens, at", [(9, 2), (1, 1)], ids=["in the middle", "at the last token"])
def test_a_reader_that_fails_loses_its_own_request_alone(tokens, at):
    def fail():
        raise ConnectionError("the client has gone")

    engine, reader = Engine(TARGET, Scheduler(BlockPool(20, 4), max_num_seqs=4)), Reader(at, fail)
    requests = [engine.request(PREFIX, max_new_tokens=tokens, on_tokens=reader)]
    requests += [engine.request(PROMPTS[1], max_new_tokens=14)]
    engine.serve(requests)
    assert requests[0].status is Status.CANCELLED and "the client has gone" in requests[0].error
    assert reader.ended == 1 and engine.output(requests[0]).finish == "cancelled"
    assert engine.output(requests[1]).ids == alone("plain", PROMPTS[1], 14)


def test_a_reader_that_fails_at_its_end_loses_its_own_request_alone():
    def fail():
        raise ConnectionError("the client has gone")

    engine = Engine(TARGET, Scheduler(BlockPool(20, 4), max_num_seqs=4))
    served = engine.request(PREFIX, max_new_tokens=3, on_tokens=Reader(at_end=fail))
    cancelled = engine.request(PREFIX, max_new_tokens=9, on_tokens=Reader(2, lambda: engine.cancel(cancelled), fail))
    last = Reader(2, lambda: engine.cancel(other))
    other = engine.request(PROMPTS[1], max_new_tokens=9, on_tokens=last)
    engine.serve([served, cancelled, other])
    assert served.status is Status.CANCELLED and "the client has gone" in served.error
    assert cancelled.status is other.status is Status.CANCELLED and last.ended == 1


@pytest.mark.parametrize("bad, why", [
    (Sequence("bad", ids=[1] * 30, output_length=20), "need 49 cached tokens, the pool has room for 40"),
    (Sequence("bad", ids=[1] * 30, output_length=500), "do not fit the context of 256"),
    (Sequence("bad", ids=[1, 97], output_length=2), "token id 97 is not in this model's vocabulary"),
    (Sequence("bad", prompt_length=5, output_length=2), "has no ids"),
], ids=["pool", "context", "vocabulary", "ids"])  # fmt: skip
def test_an_impossible_request_is_rejected_and_the_others_go_on(bad, why):
    engine = Engine(TARGET, Scheduler(BlockPool(10, 4), max_num_seqs=2))
    good = Sequence("good", ids=list(PREFIX), output_length=9)
    log = engine.serve([bad.fresh(), good])
    assert log.requests[0].status is Status.REJECTED and why in log.requests[0].error
    assert engine.output(log.requests[0]).finish == "rejected"
    assert engine.output(good).ids == alone("plain", PREFIX, 9) and good.ids == PREFIX + alone("plain", PREFIX, 9)


def test_a_workloads_answers_are_as_long_as_it_says_whatever_ends_a_text():
    target = decoder_target(tiny(), eos=tuple(range(97)))
    engine = Engine(target, Scheduler(BlockPool(20, 4)))
    one = Sequence(0, ids=list(PREFIX), output_length=5, max_tokens=9)
    engine.serve([one])
    assert one.num_output_tokens == 5 and engine.output(one).ids == alone("plain", PREFIX, 5)


@pytest.mark.parametrize("make, message", [
    (lambda: Scheduler(BlockPool(4), max_num_seqs=0), "max_num_seqs must be at least 1"),
    (lambda: Engine(Engine(TARGET, Scheduler(BlockPool(4))).target, Scheduler(BlockPool(5))), "make them equal"),
    (lambda: paged(paged(TARGET, BlockPool(4)), BlockPool(4), max_num_seqs=3), "^this PagedTarget is eager"),
    (lambda: Engine(TARGET, Scheduler(BlockPool(4))).request([]), "the prompt is empty"),
    (lambda: Engine(TARGET, Scheduler(BlockPool(4))).request([5], max_new_tokens=0), "at least 1"),
])  # fmt: skip
def test_settings_of_an_engine_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match="the engine runs our decoder, not str"):
        Engine("smollm2-135m", Scheduler(BlockPool(4)))


def served(engine, prompt=PREFIX):
    engine.serve([request := engine.request(prompt, max_new_tokens=9)])
    assert engine.output(request).ids == alone("plain", prompt, 9)
    return request


def test_engines_that_share_a_scheduler_do_not_find_each_others_prefixes():
    scheduler = Scheduler(BlockPool(40, 4))
    first, second = Engine(TARGET, scheduler), Engine(TARGET, scheduler)
    assert [served(engine).reused for engine in (second, first, first, second)] == [0, 0, 8, 0]


def test_an_engine_does_not_find_the_prefixes_of_a_simulation_on_its_scheduler():
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(40, 4)))
    assert served(engine).reused == 0 and served(engine).reused == 8
    simulate([Sequence(0, ids=list(PREFIX), output_length=9)], scheduler, LinearCost(step=1.0))
    assert served(engine).reused == 0


def test_a_pool_does_not_find_what_another_pool_wrote_over():
    shared = paged(TARGET, BlockPool(12, 4))
    first, second = (Engine(shared, Scheduler(BlockPool(12, 4))) for _ in range(2))
    assert [served(first).reused, served(second, PROMPTS[6]).reused, served(first).reused] == [0, 0, 0]
    assert served(first).reused == 8


def test_an_engine_whose_blocks_were_used_meanwhile_refuses_to_run():
    target = paged(TARGET, BlockPool(40, 4))
    first, second = (Engine(target, Scheduler(BlockPool(40, 4))) for _ in range(2))

    def run_another(_):
        second.serve([second.request(PREFIX)])

    with pytest.raises(RuntimeError, match="another run has used this engine's blocks; give each engine its own pool"):
        first.serve([first.request(PREFIX, max_new_tokens=9, on_tokens=run_another)])


def test_a_second_run_on_a_scheduler_is_refused_and_the_first_goes_on():
    scheduler, refused = Scheduler(BlockPool(40, 4)), []
    first, second = Engine(TARGET, scheduler), Engine(TARGET, scheduler)

    def run_another(_):
        for engine in (first, second):
            with pytest.raises(RuntimeError, match="this scheduler serves another run") as raised:
                engine.serve([engine.request(PREFIX)])
            refused.append(raised)
        with pytest.raises(RuntimeError, match="this scheduler serves another run"):
            simulate([Sequence(0, prompt_length=4)], scheduler, LinearCost(step=1.0))

    first.serve([request := first.request(PREFIX, max_new_tokens=9, on_tokens=run_another)])
    assert len(refused) == 18 and first.output(request).ids == alone("plain", PREFIX, 9)
    assert served(second).reused == 0


STREAMING = StreamingTarget(TARGET.decoder, streaming=Streaming(sinks=2, window=7, chunk=4))  # smaller than most texts


@pytest.mark.parametrize("blocks, setting", [
    (80, dict()),
    (80, dict(num_speculative_tokens=3)),
    (80, dict(max_num_batched_tokens=7, enable_chunked_prefill=True)),
    (80, dict(policy=Static())),
    (11, dict(watermark=0.0)),
], ids=["plain", "drafts", "chunked", "static", "preempted"])  # fmt: skip
def test_requests_with_streaming_caches_are_answered_as_if_they_ran_alone(blocks, setting):
    """A cache for each request. The pool counts their texts; a preempted request starts with a new cache."""
    pool = BlockPool(blocks, 3, enable_prefix_caching=False)
    engine = Engine(STREAMING, Scheduler(pool, max_num_seqs=4, **setting), padded=True)
    drafts = [PromptLookup(3, rule="transformers") if "num_speculative_tokens" in setting else None for _ in PROMPTS]
    requests = [
        engine.request(prompt, proposer=draft, max_new_tokens=length)
        for prompt, draft, length in zip(PROMPTS, drafts, LENGTHS, strict=True)
    ]
    engine.serve(requests)
    for request, prompt, length in zip(requests, PROMPTS, LENGTHS, strict=True):
        assert engine.output(request).ids == generate(STREAMING, prompt, max_new_tokens=length).ids
        assert request.cache.slots == 2 + 7 + 4
    assert pool.free_blocks == pool.num_blocks and (blocks > 11 or sum(request.preemptions for request in requests))


def test_streaming_caches_share_no_prefixes_and_are_not_compiled():
    with pytest.raises(ValueError, match="cannot share prefixes; make the pool with"):
        Engine(STREAMING, Scheduler(BlockPool(80)))
    compiled = CompiledStreamingTarget(TARGET.decoder, streaming=STREAMING.streaming)
    with pytest.raises(ValueError, match="the engine runs streaming caches eagerly"):
        Engine(compiled, Scheduler(BlockPool(80, enable_prefix_caching=False)))


def test_a_run_that_fails_cancels_requests_that_have_not_arrived_and_frees_their_proposers():
    engine, proposer = Engine(TARGET, Scheduler(BlockPool(20, 4), 3)), Proposer()
    running = engine.request(PREFIX, max_new_tokens=9, proposer=Failing(RuntimeError("broken")))
    later = engine.request(PREFIX, arrival=100.0, proposer=proposer)
    with pytest.raises(RuntimeError, match="broken"):
        engine.serve([running, later])
    assert later.status is Status.CANCELLED
    assert engine.request(PREFIX, proposer=proposer).status is Status.WAITING
