"""The engine (lesson 05): the scheduler's plans on a real model, with paged keys and values, on the wall clock.

What the simulator only counts is done here: `step` runs the rows of a plan together. Neither the policy, nor a
preemption, nor a shared prefix changes what a request is answered, since a row never sees another one's tokens.

    scheduler = Scheduler(BlockPool(256), max_num_seqs=16)
    engine = Engine(load("smollm2-135m"), scheduler)
    requests = [engine.request(prompt, max_new_tokens=64) for prompt in prompts]
    log = engine.serve(requests)
    engine.output(requests[0]).text
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from lessons_lib.caches.paged import PagedCache
from lessons_lib.decoding.generate import Output, Prompt, Row, new_row, step, text_of
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sampling import Acceptance
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.clock import sync
from lessons_lib.measure.memory import settled
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import Log, serve
from lessons_lib.serving.paged_target import CompiledPagedTarget, PagedTarget
from lessons_lib.serving.scheduler import Plan, Scheduler

MOMENT = 0.05  # seconds


@dataclass
class Job:
    """What the engine knows of a request beside the scheduler: its row and who reads along."""

    row: Row
    on_tokens: Callable[[list[int]], None] | None = None


class Engine:
    """Runs requests on a model of the Llama family, in the order and company that the scheduler decides.

    model: a LanguageModel, a DecoderTarget, or a PagedTarget of the pool's size. No block of the
    scheduler's pool may be in use, else ValueError; where the step shall be compiled, `paged` makes the target.
    padded: a finished request that a static batch holds is a row of every forward, as in transformers' generate, whose
    rows are a rectangle; else it only wastes its slot. TypeError and ValueError for a model as `paged` has them.

    A request keeps ids of its own beside its row's, since the scheduler and the simulator know no torch and no rows.
    """

    def __init__(self, model, scheduler: Scheduler, padded: bool = False):
        pool = scheduler.pool
        self.target, self.padded = paged(model, pool), padded
        self.scheduler, self.pool, self.memory = scheduler, pool, self.target.memory
        pool.attach(self.memory)
        self.start = time.perf_counter()
        self.jobs: WeakKeyDictionary[Sequence, Job] = WeakKeyDictionary()  # a request that nobody holds is forgotten
        self.names: WeakValueDictionary[int | str, Sequence] = WeakValueDictionary()
        self.proposers: WeakValueDictionary[int, Sequence] = WeakValueDictionary()  # by the proposer's id()
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

        A proposer finds room for its guesses in the scheduler's `guesses`; what does not fit is not guessed. Give
        each request its own proposer and generator. A failing on_tokens cancels its request alone. ValueError also for
        an arrival before 0, an id that is taken (without one it gets a number), another request's proposer.
        """
        id = self._name(id)
        self._check_unused(proposer)
        row = new_row(self.target, prompt, proposer, acceptance, max_new_tokens, min_new_tokens, stop, generator)
        request = Sequence(id, arrival, output_length=max_new_tokens, ids=list(row.ids))
        self._remember(request, Job(row, on_tokens))
        return request

    def serve(self, requests: list[Sequence]) -> Log:
        """Serve requests as they arrive, seconds from now, until all have ended -> the event log.

        Requests may also come from a workload with ids: their answers have exactly `output_length` tokens. One that
        can never run is rejected, its `error` says why, and the others go on. An exception on the way, such as a
        proposer's, or RuntimeError as `loop.serve` has it, cancels all that run or wait, and is raised again.
        RuntimeError, and nothing changed, while another run uses the scheduler.
        """
        with self.scheduler.exclusive():
            possible = [request for request in requests if request in self.jobs or self._adopt(request)]
            self.start = time.perf_counter()
            try:
                with settled():
                    log = serve(possible, self.scheduler, self)
            except BaseException:  # an interrupt, too: the blocks are for whoever is served next
                self.scheduler.stop(self.now())
                raise
        log.requests = list(requests)
        return log

    def output(self, request: Sequence) -> Output:
        """What a request was answered, as `generate` gives it; finish may also be "cancelled" or "rejected"."""
        if (job := self.jobs.get(request)) is None:
            return Output([], None, [], request.status.value)
        text = text_of(self.target.tokenizer, job.row)
        return Output(job.row.new, text, job.row.trace, job.row.finish or request.status.value)

    def cancel(self, request: Sequence) -> None:
        """End a request, whether it waits, runs or is yet to come; from any thread.

        During a run it ends before the next forward, else at once. What it was answered so far stays.
        """
        self.scheduler.cancel(request)

    def now(self) -> float:
        """Seconds since `serve` began."""
        return time.perf_counter() - self.start

    def wait(self, until: float) -> None:
        """Sleep until then, a moment at most: the loop asks again, and somebody may have been cancelled meanwhile."""
        time.sleep(max(0.0, min(until - self.now(), MOMENT)))

    @torch.no_grad()
    def run(self, plan: Plan) -> list[list[int]]:
        """One step for the rows of the plan -> the new tokens of each; the plan then says what they really fed.

        RuntimeError if another engine or a simulator has used the blocks since this one was made or began to serve.
        """
        if self.pool.owner_mark is not self.memory.owner_mark:
            raise RuntimeError("another run has used this engine's blocks; give each engine its own pool and target")
        rows = [self._row(request, tokens) for request, tokens in plan.rows]
        for source, to in self.pool.copies:
            self.memory.copy(source, to)
        self.pool.copies.clear()
        idle = [self._nobody() for _ in plan.idle] if self.padded else []
        committed = step(self.target, rows + idle)[: len(rows)] if rows + idle else []
        sync(self.target.device)  # so that the time of this forward is the log's
        plan.rows = [(request, row.trace[-1].forwarded) for (request, _), row in zip(plan.rows, rows, strict=True)]
        for (request, fed), row, tokens in zip(plan.rows, rows, committed, strict=True):
            request.finish_reason = row.finish
            request.commit(fed, tokens)
            self._tell(request, tokens)
        return committed

    def _name(self, id: int | str | None) -> int | str:
        """The id, or a number that is free; ValueError for one that is taken."""
        if id in self.names:
            raise ValueError(f"this engine has a request {id!r} already; give each an id of its own")
        return next(i for i in self.numbers if i not in self.names) if id is None else id

    def _check_unused(self, proposer: Proposer | None) -> None:
        """ValueError for the proposer of a request that has not ended."""
        user = self.proposers.get(id(proposer))
        if user is not None and user.status in (Status.WAITING, Status.RUNNING):
            raise ValueError(f"request {user.id!r} uses this proposer; give each request its own")

    def _adopt(self, request: Sequence) -> bool:
        """Make the row of a request that came from elsewhere; False, and rejected, if that cannot be done."""
        try:
            if not request.ids:
                raise ValueError("it has no ids; let the workload draw them")
            row = new_row(self.target, request.ids, None, None, request.length)
        except ValueError as error:
            request.status, request.error = Status.REJECTED, f"Request {request.id} can never run: {error}"
            return False
        row.ending.eos = frozenset()  # as many tokens as the workload says
        self._remember(request, Job(row))
        return True

    def _remember(self, request: Sequence, job: Job) -> None:
        self.jobs[request], self.names[request.id], self.proposers[id(job.row.proposer)] = job, request, request

    def _row(self, request: Sequence, tokens: int) -> Row:
        """The request's row, about to feed so many tokens, on the blocks that the pool gave it."""
        row, blocks = self.jobs[request].row, request.block_table
        if row.cache.blocks is not blocks:  # newly admitted, perhaps with a prefix, perhaps once more
            row.cache = PagedCache(self.memory, blocks, request.num_computed_tokens)
        row.chunk = tokens
        return row

    def _nobody(self) -> Row:
        """A row whose token nobody asked for, on the block that is nobody's."""
        row = new_row(self.target, [0], None, None, 1)
        row.cache = PagedCache(self.memory, [self.memory.padding])
        return row

    def _tell(self, request: Sequence, tokens: list[int]) -> None:
        """Stream new tokens to whoever reads along."""
        listener = self.jobs[request].on_tokens
        try:
            if listener and tokens and request.status is Status.RUNNING:
                listener(tokens)
                if request.finish_reason and (end := getattr(listener, "end", None)):
                    end()
        except Exception as error:  # the reader has gone: nobody else should suffer from it
            request.error = f"on_tokens failed: {error!r}"
            self.cancel(request)


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
    target = model if hasattr(model, "decoder") else model.target()
    of = target.decoder, target.tokenizer, target.eos
    return CompiledPagedTarget(*of, max_num_seqs=max_num_seqs, **sizes) if max_num_seqs else PagedTarget(*of, **sizes)
