"""One request of the engine among others: streamed, cancelled, refused, or with a reader that fails."""

from threading import Thread

import pytest
from support.serving import LENGTHS, PREFIX, PROMPTS, TARGET, alone, arguments_of
from support.targets import decoder_target

from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.models import tiny
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine, paged
from lessons_lib.serving.scheduler import Scheduler


def test_an_id_is_given_once():
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4)))
    requests = [engine.request(PREFIX, id=id) for id in (1, None, "a", None)]
    assert [request.id for request in requests] == [1, 0, "a", 2]
    with pytest.raises(ValueError, match="has a request 'a' already"):
        engine.request(PREFIX, id="a")


class Reader:
    """Collects what is streamed; does something at the n-th call."""

    def __init__(self, at: int = -1, then=lambda: None):
        self.pieces, self.ended, self.at, self.then = [], 0, at, then

    def __call__(self, tokens):
        self.pieces.append(list(tokens))
        if len(self.pieces) == self.at:
            self.then()

    def end(self):
        self.ended += 1


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
    assert engine.output(requests[0]).finish == "cancelled" and gone.ended == 0
    assert engine.output(requests[2]).ids == []
    for i in (1, 4):
        assert engine.output(requests[i]).ids == alone("plain", PROMPTS[i], LENGTHS[i])
    assert engine.pool.free_blocks == 12


def test_cancelling_from_another_thread_while_a_forward_is_planned_harms_nobody_else(monkeypatch):
    """The request is in the plan already: its blocks are taken back after this forward, not during it."""
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


def test_a_cancelled_request_that_nobody_holds_any_more_is_forgotten():
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4)))
    engine.cancel(request := engine.request(PREFIX))
    del request
    assert len(engine.requests) == 0


def test_a_request_cancelled_after_the_last_forward_of_a_run_is_cancelled_when_the_run_ends(monkeypatch):
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(20, 4)))
    request, other = engine.request(PREFIX, max_new_tokens=1), engine.request(PREFIX)
    commit = scheduler.commit
    monkeypatch.setattr(scheduler, "commit", lambda *given: (commit(*given), engine.cancel(other)))
    engine.serve([request])
    assert [r.status for r in (request, other)] == [Status.FINISHED, Status.CANCELLED]


def test_a_request_that_nobody_holds_any_more_is_forgotten():
    engine = Engine(TARGET, Scheduler(BlockPool(20, 4)))
    engine.serve([engine.request(PREFIX, id="a", max_new_tokens=2, proposer=Proposer())])
    assert len(engine.requests) == 0
    assert engine.request(PREFIX, id="a").id == "a"


def test_a_proposer_follows_one_text_at_a_time():
    engine, proposer = Engine(TARGET, Scheduler(BlockPool(20, 4), num_speculative_tokens=4)), PromptLookup(4)
    first = engine.request(PREFIX, max_new_tokens=9, proposer=proposer)
    with pytest.raises(ValueError, match="request 0 uses this proposer; give each request its own"):
        engine.request(PROMPTS[1], proposer=proposer)
    engine.serve([first])
    engine.serve([second := engine.request(PROMPTS[1], max_new_tokens=14, proposer=proposer)])
    assert engine.output(first).ids == alone("plain", PREFIX, 9)
    assert engine.output(second).ids == alone("plain", PROMPTS[1], 14)


def test_a_reader_that_fails_loses_its_own_request_alone():
    def fail():
        raise ConnectionError("the client has gone")

    engine = Engine(TARGET, Scheduler(BlockPool(20, 4), max_num_seqs=4))
    requests = [engine.request(PREFIX, max_new_tokens=9, on_tokens=Reader(2, fail))]
    requests += [engine.request(PROMPTS[1], max_new_tokens=14)]
    engine.serve(requests)
    assert requests[0].status is Status.CANCELLED and "the client has gone" in requests[0].error
    assert engine.output(requests[1]).ids == alone("plain", PROMPTS[1], 14)


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
def test_settings_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match="the engine runs our decoder, not str"):
        Engine("smollm2-135m", Scheduler(BlockPool(4)))


def test_a_request_arrives_when_it_says():
    engine = Engine(TARGET, Scheduler(BlockPool(80, 4)))
    assert [engine.request([1, 2]).arrival, engine.request([1, 2], arrival=2.5).arrival] == [0.0, 2.5]
