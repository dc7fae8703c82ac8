"""What an iteration is to do, and the event log of what it did (lesson 05): the one source of metrics and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lessons_lib.serving.request import Request

if TYPE_CHECKING:
    from lessons_lib.serving.scheduler import Scheduler


@dataclass(slots=True)
class Plan:
    """One iteration. rows: (request, tokens to feed); idle: finished requests whose slots a static batch still holds;
    preempted: those that lost their blocks while this was planned. An empty plan (false): nothing can run now."""

    rows: list[tuple[Request, int]] = field(default_factory=list)
    idle: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.idle)


class Share(NamedTuple):
    """One request's part of an iteration: its slot, tokens fed and emitted, whether it worked on a prompt, and how
    many of its tokens were cached before."""

    id: int | str
    slot: int
    fed: int
    emitted: int
    prefill: bool
    cached: int


class Iteration(NamedTuple):
    """One forward, planned at `start` and done at `end` (seconds). waiting: requests in the queue meanwhile; idle:
    (slot, id) of the finished requests that still held theirs; preempted: ids; used_blocks: of the pool;
    cached_tokens: keys and values of the running requests, those fed in this forward included (a shared prefix counts
    once for each)."""

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
    """A run: its requests (with their own times) and its iterations, on `slots` slots and a pool of so many blocks."""

    requests: list[Request]
    slots: int
    num_blocks: int
    block_size: int
    iterations: list[Iteration] = field(default_factory=list)

    def record(self, scheduler: Scheduler, plan: Plan, committed: Sequence[Sequence[int]], start: float, end: float):
        """Note an iteration that ran from start to end (seconds); before scheduler.commit, which moves the requests on.

        committed: the new tokens of each row of the plan, else ValueError.
        """
        shares = [
            Share(r.id, r.slot, fed, len(tokens), r.prefilling, r.computed)
            for (r, fed), tokens in zip(plan.rows, committed, strict=True)
        ]
        cached = sum([r.computed for r in scheduler.running]) + sum([fed for _, fed in plan.rows])
        used = self.num_blocks - scheduler.pool.free_blocks
        waiting, preempted = len(scheduler.waiting), [r.id for r in plan.preempted]
        idle = [(r.slot, r.id) for r in plan.idle]
        self.iterations.append(Iteration(start, end, shares, waiting, idle, preempted, used, cached))
