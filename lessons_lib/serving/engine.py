"""The engine (lesson 05): runs the scheduler's plans on a real model, with a paged KV cache, in real time.

`step` runs all sequences of a plan in one forward pass. A sequence never attends to another sequence's tokens, so no
policy, preemption or shared prefix changes an output.

    scheduler = Scheduler(BlockPool(256), max_num_seqs=16)
    engine = Engine(load("smollm2-135m"), scheduler)
    requests = [engine.request(prompt, max_new_tokens=64) for prompt in prompts]
    log = engine.serve(requests)
    engine.output(requests[0]).text
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from weakref import WeakSet

import torch

from lessons_lib.caches.paged import PagedCache, PagedMemory
from lessons_lib.caches.streaming import StreamingCache
from lessons_lib.decoding.generate import Output, new_sequence, ready, step, text_of
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sampling import Acceptance
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.decoding.targets import CompiledStreamingTarget, StreamingTarget
from lessons_lib.decoding.text import Prompt, encode
from lessons_lib.measure.clock import sync
from lessons_lib.measure.profiler import gc_frozen
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import Log, serve
from lessons_lib.serving.paged_target import CompiledPagedTarget, PagedTarget
from lessons_lib.serving.scheduler import Plan, Scheduler

MOMENT = 0.05  # seconds


class Engine:
    """Serves requests on a model of the Llama family, batched as the scheduler decides (vLLM: EngineCore).

    model: a LanguageModel, a DecoderTarget, or a PagedTarget of the pool's size (`paged` makes a compiled one). With a
    StreamingTarget, each request has a streaming cache of its own; the pool then counts the blocks of its
    whole text, so it must have that many, although the caches stay small.
    padded: whether a finished request that a static batch still holds takes part in every forward pass as padding, as
    in transformers' generate, which runs a rectangular batch. If not, it only occupies its slot.
    """

    def __init__(self, model, scheduler: Scheduler, padded: bool = False):
        self.target, self.padded = paged(model, scheduler.pool), padded
        self.scheduler, self.pool, self.memory = scheduler, scheduler.pool, memory_of(self.target)
        self.start = time.perf_counter()
        self.requests: WeakSet[Sequence] = WeakSet()  # those that `request` made and something else refers to
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
        """Make a request for `serve`. The arguments not listed here are those of `generate`.

        id: its name in the log, which tells requests apart by it alone; by default a number. arrival: seconds after
        the start of `serve`.
        proposer: drafts at most the scheduler's `num_speculative_tokens` tokens per step; at its default, 0, it drafts
        nothing. Give each request its own proposer and generator.
        on_tokens: if it raises an exception, only its own request is cancelled. `serve` calls its `end` after the last
        token, or at the end of the run if the request was cancelled, failed or rejected.
        """
        id = next(self.numbers) if id is None else id
        for other in self.requests if proposer is not None else ():
            if other.proposer is proposer and other.status in (Status.WAITING, Status.RUNNING):
                raise ValueError(f"request {other.id!r} uses this proposer; give each request its own")
        limits = max_new_tokens, min_new_tokens, stop
        seq = new_sequence(self.target, prompt, proposer, acceptance, *limits, generator, id=id, arrival=arrival)
        seq.on_tokens = on_tokens
        self.requests.add(seq)
        return seq

    def serve(self, requests: list[Sequence]) -> Log:
        """Serve requests as they arrive (seconds from now) until all have ended -> the event log.

        Requests may also come from a workload with ids: their outputs then have exactly `output_length` tokens. A
        request that can never run is rejected with an `error`, and the others continue. Any other exception, such as
        a proposer's, cancels all requests and is raised again. A scheduler serves one run at a time.
        """
        with self.scheduler.exclusive():
            possible = [seq for seq in requests if seq.stopping is not None or self._adopt(seq)]
            self.pool.attach(self.memory)
            self.start = time.perf_counter()
            try:
                with gc_frozen():
                    log = serve(possible, self.scheduler, self)
            except BaseException:  # also an interrupt: free the blocks for the next run
                for seq in possible:
                    if seq.status is Status.WAITING:  # also those that have not arrived
                        self.cancel(seq)
                self.scheduler.stop(self.now())
                raise
            finally:
                for seq in possible:
                    with suppress(Exception):  # what failed in on_tokens may fail again
                        self._end_stream(seq)
        log.requests = list(requests)
        return log

    def output(self, seq: Sequence) -> Output:
        """The output of a request, as from `generate`. Its finish reason may also be "cancelled" or "rejected"."""
        if seq.stopping is None:
            return Output([], None, [], seq.status.value)
        text = text_of(self.target.tokenizer, seq)
        cancelled = seq.status is Status.CANCELLED  # perhaps as its last token arrived
        return Output(seq.output_ids, text, seq.stats, (not cancelled and seq.finish_reason) or seq.status.value)

    def cancel(self, seq: Sequence) -> None:
        """Cancel a request that waits, runs or has not arrived yet. Thread-safe.

        During a run it ends before the next step, otherwise at once. It keeps its output so far.
        """
        self.scheduler.cancel(seq)

    def now(self) -> float:
        """Seconds since `serve` began."""
        return time.perf_counter() - self.start

    def wait(self, until: float) -> None:
        """Sleep until `until`, but at most MOMENT: the loop calls again, after looking for cancelled requests."""
        time.sleep(max(0.0, min(until - self.now(), MOMENT)))

    @torch.no_grad()
    def run(self, plan: Plan) -> list[list[int]]:
        """Run one step for the rows of a plan -> the new tokens of each row.

        Replaces the planned number of tokens of each row by the number that was fed.
        """
        if self.pool.owner_mark is not self.memory.owner_mark:
            raise RuntimeError("another run has used this engine's blocks; give each engine its own pool and target")
        # give every sequence its token budget, and a cache if it was just admitted
        seqs = [row.seq for row in plan.rows]
        for row in plan.rows:
            row.seq.num_scheduled_tokens = row.tokens
            if row.seq.cache is None:
                row.seq.cache = self._new_cache(row.seq)
        # copy-on-write, before the pass writes
        for source, to in self.pool.copies:
            self.memory.copy(source, to)
        self.pool.copies.clear()
        # one forward pass; then stream the new tokens
        idle = [self._padding() for _ in plan.idle] if self.padded else []
        committed = step(self.target, seqs + idle)[: len(seqs)] if seqs + idle else []
        sync(self.target.device)  # so that the log has the time of the whole step
        for row, tokens in zip(plan.rows, committed, strict=True):
            row.tokens = row.seq.stats[-1].num_input_tokens
            self._stream(row.seq, tokens)
        return committed

    def _new_cache(self, seq: Sequence) -> PagedCache | StreamingCache:
        """A cache over the sequence's block table, or a streaming cache of its own."""
        if isinstance(self.target, StreamingTarget):
            return self.target.new_cache(seq.num_tokens)
        return PagedCache(self.memory, seq.block_table, seq.num_computed_tokens)

    def _adopt(self, seq: Sequence) -> bool:
        """Prepare a request that this engine did not make. Returns False if it cannot run; it is then rejected."""
        try:
            if not seq.ids:
                raise ValueError("it has no ids; let the workload draw them")
            seq.ids = encode(self.target, seq.ids)
            ready(self.target, seq)
        except ValueError as error:
            seq.status, seq.error = Status.REJECTED, f"Request {seq.id} can never run: {error}"
            return False
        return True

    def _padding(self) -> Sequence:
        """A padding sequence: one token per step, written to the null block, or to a streaming cache of its own."""
        seq = new_sequence(self.target, [0], max_new_tokens=1)
        if not isinstance(self.target, StreamingTarget):
            seq.cache = PagedCache(self.memory, [self.memory.null_block])
        return seq

    def _stream(self, seq: Sequence, tokens: list[int]) -> None:
        """Pass new tokens to the request's on_tokens."""
        try:
            if seq.on_tokens is not None and tokens and seq.status is Status.RUNNING:
                seq.on_tokens(tokens)
                if seq.finish_reason:
                    self._end_stream(seq)
        except Exception as error:  # for example a closed connection: the other requests continue
            seq.error = f"on_tokens failed: {error!r}"
            self.cancel(seq)

    def _end_stream(self, seq: Sequence) -> None:
        """Call `end` of the request's on_tokens, once: a TextStream shows what it holds back and is free again."""
        on_tokens, seq.on_tokens = seq.on_tokens, None
        if end := getattr(on_tokens, "end", None):
            end()


class OwnCaches:
    """Stands in for a pool's memory where every sequence has a cache of its own."""

    owner_mark: object | None = None


def memory_of(target: PagedTarget | StreamingTarget) -> PagedMemory | OwnCaches:
    """The memory of the pool's blocks."""
    return OwnCaches() if isinstance(target, StreamingTarget) else target.memory


def paged(model, pool: BlockPool, max_num_seqs: int | None = None) -> PagedTarget | StreamingTarget:
    """A PagedTarget for the model with a KV cache of the pool's size; an existing PagedTarget is returned as it is.

    So is an eager StreamingTarget, which has no blocks; the pool must not share prefixes then.
    max_num_seqs: batch size to compile and tune the decode step for; None: eager.
    Raises ValueError if our decoder cannot run the model.
    """
    sizes = dict(num_blocks=pool.num_blocks, block_size=pool.block_size)
    if isinstance(model, PagedTarget):
        if model.sizes != sizes:
            raise ValueError(f"the target was made for {model.sizes}, the pool has {sizes}; make them equal")
        if max_num_seqs and not isinstance(model, CompiledPagedTarget):
            raise ValueError("this PagedTarget is eager; hand in a CompiledPagedTarget, or the model itself")
        return model
    if isinstance(model, StreamingTarget | CompiledStreamingTarget):
        if max_num_seqs or isinstance(model, CompiledStreamingTarget):
            raise ValueError("the engine runs streaming caches eagerly; hand in a StreamingTarget without max_num_seqs")
        if pool.enable_prefix_caching:
            raise ValueError(
                "streaming caches cannot share prefixes; make the pool with BlockPool(..., enable_prefix_caching=False)"
            )
        return model
    if not hasattr(model, "decoder") and not hasattr(model, "target"):
        raise TypeError(f"the engine runs our decoder, not {type(model).__name__}; pass lessons_lib.load(...)")
    target = model if hasattr(model, "decoder") else model.target("decoder")
    of = target.decoder, target.tokenizer, target.eos
    return CompiledPagedTarget(*of, max_num_seqs=max_num_seqs, **sizes) if max_num_seqs else PagedTarget(*of, **sizes)
