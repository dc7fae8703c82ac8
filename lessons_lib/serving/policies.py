"""Policies (lesson 05): who enters the batch, when, and who must leave if memory runs out.

A policy answers four small questions; override the one that you want to change:

    class LongPromptsLast(Continuous):
        def order(self, requests, now):
            return sorted(requests, key=lambda r: r.prompt_length)

order: of the waiting, who enters first; of the running, the last one is preempted when no block is free.
admit: how many may enter in this iteration. over: whether a batch that is held together may end.
wake: when to ask again though nobody arrives; a time that has passed means at the next arrival.
The rest (slots, blocks, token budget) is the scheduler's business. Times are seconds from the start of the run.
Source: Yu et al. 2022 (Orca: iteration-level scheduling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lessons_lib.serving.request import Request
    from lessons_lib.serving.scheduler import Scheduler


class Continuous:
    """Continuous batching, first come, first served: after every forward whoever waits takes the free slots."""

    hold = False  # whether those that finished keep their slots until the whole batch has

    def order(self, requests: Sequence[Request], now: float) -> Sequence[Request]:
        """Most urgent first. The waiting come sorted by arrival, the running in the order they were admitted."""
        return requests

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """How many waiting requests may enter now; free slots and free blocks limit it further."""
        return scheduler.slots

    def over(self, scheduler: Scheduler) -> bool:
        """Whether a held batch whose requests have all finished may end."""
        return True

    def wake(self, scheduler: Scheduler) -> float:
        """Time at which `admit` may change its mind without an arrival."""
        return math.inf


class ShortestFirst(Continuous):
    """Whoever has the fewest tokens left goes first, by the limit that the client sent. Long ones may starve."""

    def order(self, requests: Sequence[Request], now: float) -> Sequence[Request]:
        """By max_tokens less what was emitted, ascending."""
        return sorted(requests, key=lambda r: r.max_tokens - r.emitted)


@dataclass
class Static(Continuous):
    """Static batching: wait until all slots can be filled, then run that batch until its longest member ends.

    steps: a batch runs at least so many iterations; with the longest output of the whole job this is the naive
    baseline that gives every request the same length.
    """

    steps: int = 0
    hold = True

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """All slots once no request holds one and enough wait, or nobody else will come; else 0."""
        ready = len(scheduler.waiting) >= scheduler.slots or scheduler.closed
        return scheduler.slots if scheduler.empty and ready else 0

    def over(self, scheduler: Scheduler) -> bool:
        """Whether the batch has run `steps` iterations."""
        return scheduler.batch_steps >= self.steps


@dataclass
class Dynamic(Static):
    """Naive dynamic batching: as static, but a batch starts at the latest `window` seconds after its first arrival."""

    window: float = 0.1

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """As Static, and all slots once the first in the queue has waited `window` seconds."""
        due = scheduler.waiting and now >= self.wake(scheduler)
        return scheduler.slots if scheduler.empty and due else super().admit(scheduler, now)

    def wake(self, scheduler: Scheduler) -> float:
        """When the first in the queue will have waited `window` seconds; infinity without one."""
        return scheduler.waiting[0].arrival + self.window if scheduler.waiting else math.inf
