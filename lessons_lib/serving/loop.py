"""The serving loop and its event log (lesson 05): schedule, run, commit, until every request has ended.

A backend runs the plans: the engine on a model and the wall clock, the simulator on a cost model and a number.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.block_pool import Memory
from lessons_lib.serving.scheduler import Plan, Scheduler


class Share(NamedTuple):
    """One sequence's part of a step: its slot, tokens fed and emitted, whether it prefilled, tokens cached before."""

    id: int | str
    slot: int
    fed: int
    emitted: int
    prefill: bool
    cached: int


class Iteration(NamedTuple):
    """One step, planned at `start` and done at `end` (seconds).

    waiting: requests in the queue meanwhile. idle: (slot, id) of finished requests that still held theirs. preempted:
    ids. used_blocks: of the pool. cached_tokens: keys and values of the running sequences, those fed in this step
    included; a shared prefix counts once for each.
    """

    start: float
    end: float
    shares: list[Share]
    waiting: int
    idle: list[tuple[int, int | str]]
    preempted: list[int | str]
    used_blocks: int
    cached_tokens: int


@dataclass
class Log:
    """A run: its requests (with their own times) and its steps, on `slots` slots and a pool of so many blocks."""

    requests: list[Sequence]
    slots: int
    num_blocks: int
    block_size: int
    iterations: list[Iteration] = field(default_factory=list)

    def record(self, scheduler: Scheduler, plan: Plan, committed: list[list[int]], start: float, end: float) -> None:
        """Note a step that ran from start to end (seconds); before scheduler.commit, which frees blocks and slots."""
        shares = [
            Share(seq.id, seq.slot, fed, len(tokens), prefill, cached)
            for (seq, fed), tokens, (prefill, cached) in zip(plan.rows, committed, plan.before, strict=True)
        ]
        cached = plan.cached_tokens + sum([fed for _, fed in plan.rows])
        used = self.num_blocks - scheduler.pool.free_blocks
        waiting, preempted = len(scheduler.waiting), [seq.id for seq in plan.preempted]
        idle = [(seq.slot, seq.id) for seq in plan.idle]
        self.iterations.append(Iteration(start, end, shares, waiting, idle, preempted, used, cached))


class Backend(Protocol):
    """Runs plans, on a clock of its own (seconds from the start of the run)."""

    memory: Memory  # of the pool's blocks

    def now(self) -> float:
        """The time."""

    def wait(self, until: float) -> None:
        """Let the time pass until then."""

    def run(self, plan: Plan) -> list[list[int]]:
        """Run one step and commit to each sequence what it gave -> the new tokens of each row.

        A row that feeds only a part of a prompt gives none.
        """


def serve(requests: list[Sequence], scheduler: Scheduler, backend: Backend) -> Log:
    """Serve the requests as they arrive, until all have ended -> the event log.

    A request that can never run is rejected (its `error` says why) and the others go on. One that is being served, or
    has been, stays as it is. RuntimeError if the policy admits nothing though nothing runs and nothing will change.
    """
    scheduler.pool.attach(backend.memory)
    arrivals = deque(sorted(requests, key=lambda seq: seq.arrival))
    log = Log(list(requests), scheduler.max_num_seqs, scheduler.pool.num_blocks, scheduler.pool.block_size)
    while arrivals or scheduler.unfinished:
        _arrive(arrivals, scheduler, backend.now())
        start = backend.now()
        plan = scheduler.schedule(start)
        if plan:
            committed = backend.run(plan)
            end = backend.now()
            log.record(scheduler, plan, committed, start, end)
            scheduler.commit(plan, committed, end)
        elif not plan.preempted and (arrivals or scheduler.unfinished):
            backend.wait(_next_event(arrivals, scheduler, start))
    return log


def _arrive(arrivals: deque[Sequence], scheduler: Scheduler, now: float) -> None:
    """Queue the requests whose time has come; cancelled ones are not waited for."""
    while arrivals and (arrivals[0].arrival <= now or arrivals[0].status is Status.CANCELLED):
        seq = arrivals.popleft()
        if seq.status is Status.CANCELLED:
            continue
        with suppress(ValueError):  # a rejected request has an error that says why
            scheduler.add(seq)
    scheduler.closed = not arrivals


def _next_event(arrivals: deque[Sequence], scheduler: Scheduler, now: float) -> float:
    """When something can change: at the next arrival, or when the policy wants to be asked again."""
    wake = scheduler.policy.wake(scheduler)
    event = min(arrivals[0].arrival if arrivals else math.inf, wake if wake > now else math.inf)
    if math.isinf(event):
        name = type(scheduler.policy).__name__
        raise RuntimeError(f"{name} lets none of the waiting in though nothing runs: its admit returns 0.")
    return event
