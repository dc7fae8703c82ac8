"""The engine (lesson 05): the scheduler's plans on a real model, with paged keys and values, on the wall clock.

What the simulator only counts is done here: `step` runs the sequences of a plan in one forward pass. Neither the
policy, nor a preemption, nor a shared prefix changes an answer, since a sequence never sees another one's tokens.

    scheduler = Scheduler(BlockPool(256), max_num_seqs=16)
    engine = Engine(load("smollm2-135m"), scheduler)
    requests = [engine.request(prompt, max_new_tokens=64) for prompt in prompts]
    log = engine.serve(requests)
    engine.output(requests[0]).text
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from weakref import WeakSet

import torch

from lessons_lib.caches.paged import PagedCache
from lessons_lib.decoding.generate import Output, new_sequence, ready, step, text_of
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sampling import Acceptance
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.decoding.text import Prompt, encode
from lessons_lib.measure.clock import sync
from lessons_lib.measure.profiler import gc_frozen
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import Log, serve
from lessons_lib.serving.paged_target import CompiledPagedTarget, PagedTarget
from lessons_lib.serving.scheduler import Plan, Scheduler

MOMENT = 0.05  # seconds


class Engine:
    """Runs requests on a model of the Llama family, in the order and company that the scheduler decides.

    model: a LanguageModel, a DecoderTarget, or a PagedTarget of the pool's size. No block of the scheduler's pool may
    be in use, else ValueError. `paged` makes a target whose step is compiled; its errors for a model hold here, too.
    padded: a finished request that a static batch holds is a row of every forward pass, as in transformers' generate,
    whose rows are a rectangle; else it only wastes its slot.
    """

    def __init__(self, model, scheduler: Scheduler, padded: bool = False):
        self.target, self.padded = paged(model, scheduler.pool), padded
        self.scheduler, self.pool, self.memory = scheduler, scheduler.pool, self.target.memory
        self.pool.attach(self.memory)
        self.start = time.perf_counter()
        self.requests: WeakSet[Sequence] = WeakSet()  # those that somebody still holds
        self.numbers = count()

    def request(
        self,
        prompt: Prompt,
        *,
        id: int | str | None = None,
        arrival: float = 0.0,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        stop: str | list[str] | None = None,
        proposer: Proposer | None = None,
        acceptance: Acceptance | None = None,
        generator: torch.Generator | None = None,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Sequence:
        """A request for `serve`, arriving at `arrival` seconds; the other arguments, and errors, as `generate`.

        A proposer may draft as many tokens as the scheduler's `num_speculative_tokens`. Give each request its own
        proposer and generator. If on_tokens raises, its request alone is cancelled. ValueError also for an arrival
        before 0, an id that is taken (without one it gets a number), and another request's proposer.
        """
        if any(other.id == id for other in self.requests):
            raise ValueError(f"this engine has a request {id!r} already; give each an id of its own")
        users = (other for other in self.requests if proposer is not None and other.proposer is proposer)
        if user := next((one for one in users if one.status in (Status.WAITING, Status.RUNNING)), None):
            raise ValueError(f"request {user.id!r} uses this proposer; give each request its own")
        if id is None:
            id = next(i for i in self.numbers if all(other.id != i for other in self.requests))
        limits = max_new_tokens, min_new_tokens, stop
        seq = new_sequence(self.target, prompt, proposer, acceptance, *limits, generator, id=id, arrival=arrival)
        seq.on_tokens = on_tokens
        self.requests.add(seq)
        return seq

    def serve(self, requests: list[Sequence]) -> Log:
        """Serve requests as they arrive, seconds from now, until all have ended -> the event log.

        Requests may also come from a workload with ids: their answers have exactly `output_length` tokens. One that
        can never run is rejected, its `error` says why, and the others go on. An exception on the way, such as a
        proposer's, or RuntimeError as `loop.serve` has it, cancels all that run or wait, and is raised again.
        RuntimeError, and nothing changed, while another run uses the scheduler.
        """
        with self.scheduler.exclusive():
            possible = [seq for seq in requests if seq.stopping is not None or self._adopt(seq)]
            self.start = time.perf_counter()
            try:
                with gc_frozen():
                    log = serve(possible, self.scheduler, self)
            except BaseException:  # an interrupt, too: the blocks are for whoever is served next
                self.scheduler.stop(self.now())
                raise
        log.requests = list(requests)
        return log

    def output(self, seq: Sequence) -> Output:
        """The answer to a request, as `generate` gives it; finish may also be "cancelled" or "rejected"."""
        if seq.stopping is None:
            return Output([], None, [], seq.status.value)
        text = text_of(self.target.tokenizer, seq)
        return Output(seq.output_ids, text, seq.stats, seq.finish_reason or seq.status.value)

    def cancel(self, seq: Sequence) -> None:
        """End a request, whether it waits, runs or is yet to come; from any thread.

        During a run it ends before the next step, else at once. Its output so far stays.
        """
        self.scheduler.cancel(seq)

    def now(self) -> float:
        """Seconds since `serve` began."""
        return time.perf_counter() - self.start

    def wait(self, until: float) -> None:
        """Sleep until then, a moment at most: the loop asks again, and a request may have been cancelled meanwhile."""
        time.sleep(max(0.0, min(until - self.now(), MOMENT)))

    @torch.no_grad()
    def run(self, plan: Plan) -> list[list[int]]:
        """One step for the rows of the plan -> the new tokens of each; the plan then says what they really fed.

        RuntimeError if another engine or a simulator has used the blocks since this one was made or began to serve.
        """
        if self.pool.owner_mark is not self.memory.owner_mark:
            raise RuntimeError("another run has used this engine's blocks; give each engine its own pool and target")
        seqs = [seq for seq, _ in plan.rows]
        for seq, tokens in plan.rows:
            seq.num_scheduled_tokens = tokens
            if seq.cache.blocks is not seq.block_table:  # newly admitted, perhaps with a prefix, perhaps once more
                seq.cache = PagedCache(self.memory, seq.block_table, seq.num_computed_tokens)
        for source, to in self.pool.copies:
            self.memory.copy(source, to)
        self.pool.copies.clear()
        idle = [self._padding() for _ in plan.idle] if self.padded else []
        committed = step(self.target, seqs + idle)[: len(seqs)] if seqs + idle else []
        sync(self.target.device)  # so that the time of this step is the log's
        plan.rows = [(seq, seq.stats[-1].num_input_tokens) for seq in seqs]
        for seq, tokens in zip(seqs, committed, strict=True):
            self._stream(seq, tokens)
        return committed

    def _adopt(self, seq: Sequence) -> bool:
        """Make a request that came from elsewhere ready; False, and rejected, if that cannot be done."""
        try:
            if not seq.ids:
                raise ValueError("it has no ids; let the workload draw them")
            seq.ids = encode(self.target, seq.ids)
            ready(self.target, seq)
        except ValueError as error:
            seq.status, seq.error = Status.REJECTED, f"Request {seq.id} can never run: {error}"
            return False
        self.requests.add(seq)
        return True

    def _padding(self) -> Sequence:
        """A row of one token that no request needs, on the null block."""
        seq = new_sequence(self.target, [0], None, None, 1)
        seq.cache = PagedCache(self.memory, [self.memory.null_block])
        return seq

    def _stream(self, seq: Sequence, tokens: list[int]) -> None:
        """Hand new tokens to the request's reader."""
        try:
            if seq.on_tokens and tokens and seq.status is Status.RUNNING:
                seq.on_tokens(tokens)
                if seq.finish_reason and (end := getattr(seq.on_tokens, "end", None)):
                    end()
        except Exception as error:  # the reader has gone: no other request should suffer from it
            seq.error = f"on_tokens failed: {error!r}"
            self.cancel(seq)


def paged(model, pool: BlockPool, max_num_seqs: int | None = None) -> PagedTarget:
    """The model's decoder on paged caches of the pool's size, compiled and tuned for `max_num_seqs` rows (None: eager).

    TypeError for what is no decoder of ours; ValueError for a LanguageModel that our decoder cannot compute, and a
    PagedTarget that was made for another pool, or is eager where a compiled one was asked for.
    """
    sizes = dict(num_blocks=pool.num_blocks, block_size=pool.block_size)
    if isinstance(model, PagedTarget):
        if model.sizes != sizes:
            raise ValueError(f"the target was made for {model.sizes}, the pool has {sizes}; make them equal")
        if max_num_seqs and not isinstance(model, CompiledPagedTarget):
            raise ValueError("this PagedTarget is eager; hand in a CompiledPagedTarget, or the model itself")
        return model
    if not hasattr(model, "decoder") and not hasattr(model, "target"):
        raise TypeError(f"the engine runs our decoder, not {type(model).__name__}; pass lessons_lib.load(...)")
    target = model if hasattr(model, "decoder") else model.target("decoder")
    of = target.decoder, target.tokenizer, target.eos
    return CompiledPagedTarget(*of, max_num_seqs=max_num_seqs, **sizes) if max_num_seqs else PagedTarget(*of, **sizes)
