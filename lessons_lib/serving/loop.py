"""The serving loop and its event log (lesson 05): schedule, run, commit, until every request has ended.

A backend runs the plans: the engine on a model in real time, the simulator on a cost model in virtual time.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.scheduler import Plan, Scheduler


class Share(NamedTuple):
    """One sequence in one step: tokens fed and emitted, whether it was prefill, tokens cached before the step."""

    id: int | str
    fed: int
    emitted: int
    prefill: bool
    cached: int


class Iteration(NamedTuple):
    """One step, from `start` to `end` (seconds).

    waiting: number of requests in the queue. preempted: ids. used_blocks: blocks of the pool in use.
    cached_tokens: cached tokens of all running sequences, this step's included; a shared prefix counts once per
    sequence.
    """

    start: float
    end: float
    shares: list[Share]
    waiting: int
    preempted: list[int | str]
    used_blocks: int
    cached_tokens: int


@dataclass
class Log:
    """The event log of a run: its requests (with their times), its steps, and the number of blocks and their size."""

    requests: list[Sequence]
    num_blocks: int
    block_size: int
    iterations: list[Iteration] = field(default_factory=list)

    def record(self, scheduler: Scheduler, plan: Plan, committed: list[list[int]], start: float, end: float) -> None:
        """Log a step that ran from start to end (seconds). Call it before scheduler.commit frees blocks."""
        shares = [
            Share(row.seq.id, row.tokens, len(tokens), row.prefilling, row.cached)
            for row, tokens in zip(plan.rows, committed, strict=True)
        ]
        cached = plan.cached_tokens + sum([row.tokens for row in plan.rows])
        used = self.num_blocks - scheduler.pool.free_blocks
        waiting, preempted = len(scheduler.waiting), [seq.id for seq in plan.preempted]
        self.iterations.append(Iteration(start, end, shares, waiting, preempted, used, cached))


class Backend(Protocol):
    """Runs plans and keeps the time, in seconds from the start of the run."""

    def now(self) -> float:
        """The current time."""

    def wait(self, until: float) -> None:
        """Wait until the time `until`, or less: the loop calls again."""

    def run(self, plan: Plan) -> list[list[int]]:
        """Run one step and append the new tokens to each sequence -> the new tokens of each row of the plan.

        A row that feeds only a part of a prompt gets no new token. Sets the `tokens` of each row to the number that it
        fed, which `Log.record` reads.
        """


def serve(requests: list[Sequence], scheduler: Scheduler, backend: Backend) -> Log:
    """Serve the requests as they arrive, until all have ended -> the event log.

    A request that can never run is rejected with an `error`, and the others continue. A request that is running or has
    run is left unchanged.
    """
    arrivals = deque(sorted(requests, key=lambda seq: seq.arrival))
    log = Log(list(requests), scheduler.pool.num_blocks, scheduler.pool.block_size)
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
            wake = scheduler.policy.wake(scheduler)
            event = min(arrivals[0].arrival if arrivals else math.inf, wake if wake > start else math.inf)
            if math.isinf(event):
                name = type(scheduler.policy).__name__
                raise RuntimeError(f"{name} lets none of the waiting in though nothing runs: its admit returns 0.")
            backend.wait(event)
    return log


def _arrive(arrivals: deque[Sequence], scheduler: Scheduler, now: float) -> None:
    """Queue the requests that have arrived by now. Skip those that were cancelled or have run, and wait for none."""
    while arrivals and (arrivals[0].arrival <= now or arrivals[0].status is not Status.WAITING):
        with suppress(ValueError):  # a rejected request keeps the reason in `error`; skipped ones have none
            scheduler.add(arrivals.popleft())
    scheduler.closed = not arrivals
