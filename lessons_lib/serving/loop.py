"""The serving loop (lesson 05): arrivals, schedule, run, commit; the same for the simulator and for an engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from lessons_lib.serving.plan import Log, Plan
from lessons_lib.serving.pool import Memory
from lessons_lib.serving.request import Request, State
from lessons_lib.serving.scheduler import Scheduler


class Backend(Protocol):
    """What runs plans: the simulator or an engine, each with its own clock (seconds from the start of the run)."""

    memory: Memory  # of the pool's blocks

    def now(self) -> float:
        """The time."""

    def wait(self, until: float) -> None:
        """Let the time pass until then."""

    def run(self, plan: Plan) -> list[Sequence[int]]:
        """Run one forward -> for each row its new tokens, none if it fed only a part of a prompt."""


def serve(requests: Sequence[Request], scheduler: Scheduler, backend: Backend) -> Log:
    """Serve the requests as they arrive, until all have finished -> the event log.

    A request that can never run is rejected (see its `error`) and the others go on; one that is being served or has
    been stays as it is. RuntimeError if the policy lets nobody in though nothing runs and nothing will change.
    """
    scheduler.pool.attach(backend.memory)
    arrivals = deque(sorted(requests, key=lambda r: r.arrival))
    pool = scheduler.pool
    log = Log(list(requests), scheduler.slots, pool.num_blocks, pool.block_size)
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


def _arrive(arrivals: deque[Request], scheduler: Scheduler, now: float) -> None:
    """Queue the requests whose time has come; nobody waits for a cancelled one."""
    while arrivals and (arrivals[0].arrival <= now or arrivals[0].state is State.CANCELLED):
        request = arrivals.popleft()
        if request.state is State.CANCELLED:
            continue
        with suppress(ValueError):  # who is rejected has an error that says why
            scheduler.add(request)
    scheduler.closed = not arrivals


def _next_event(arrivals: deque[Request], scheduler: Scheduler, now: float) -> float:
    """When something can change: the next arrival, or when the policy wants to be asked again, if that is to come."""
    wake = scheduler.policy.wake(scheduler)
    event = min(arrivals[0].arrival if arrivals else math.inf, wake if wake > now else math.inf)
    if math.isinf(event):
        name = type(scheduler.policy).__name__
        raise RuntimeError(f"{name} lets none of the waiting in though nothing runs: its admit returns 0.")
    return event
