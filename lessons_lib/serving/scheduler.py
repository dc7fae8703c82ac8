"""The scheduler (lesson 05): which requests run in the next step, in what order, and who waits or is preempted.

The engine and the simulator share it; nothing here needs torch.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.serving.block_pool import Memory, Pool
from lessons_lib.serving.request import Log, Plan, Request, State


def check_settings(scheduler: Scheduler) -> None:
    """ValueError, saying what to do, for settings that cannot work."""
    if scheduler.slots < 1:
        raise ValueError(f"A scheduler needs at least one slot, not {scheduler.slots}.")
    if scheduler.reserve not in ("none", "max", "oracle"):
        raise ValueError(f"reserve is 'none', 'max' or 'oracle', not {scheduler.reserve!r}.")
    if scheduler.guesses < 0 or not 0 <= scheduler.watermark < 1:
        raise ValueError("guesses is at least 0 and watermark a part of the pool from 0 to below 1.")
    budget, decoding = scheduler.token_budget, scheduler.slots * (1 + scheduler.guesses)
    if budget is not None and budget < decoding:
        raise ValueError(f"token_budget must cover {decoding} tokens, one step of all slots, not {budget}.")
    if scheduler.chunked and (budget is None or not scheduler.mixed):
        raise ValueError("chunked=True needs a token_budget, and mixed=True: parts of prompts run beside decoding.")


def impossible(scheduler: Scheduler, request: Request) -> str | None:
    """Why a request could never run to its end, or None."""
    pool, budget = scheduler.pool, scheduler.token_budget
    longest = cached_tokens(request.prompt_length, request.max_tokens)
    need, room = longest + scheduler.guesses, pool.num_blocks * pool.block_size
    if need > room:
        return f"prompt and output need {need} cached tokens, the pool has room for {room}."
    at_once = longest if scheduler.reserve == "none" else request.prompt_length  # a preempted one is fed anew
    if budget is not None and not scheduler.chunked and at_once > budget:
        return f"up to {at_once} tokens at once, token_budget is {budget}; set chunked=True."
    return None


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


@dataclass
class Scheduler:
    """Picks the rows of every iteration.

    slots: requests in one forward, at most. token_budget: tokens in one forward, at most (None: any number);
    chunked: a prompt may be fed in parts, so that decoding rows never wait for a long one. mixed: prompts and
    decoding rows share a forward; if not, prompts go first and alone. reserve: blocks taken at admission, "none" (for
    the prompt; more as it grows, preempting others if need be), "max" (for max_tokens) or "oracle" (for the true
    length). watermark: part of the pool that admission leaves free. guesses: tokens that a decoding row may feed
    beyond its one, for guesses. ValueError for settings that cannot work.
    """

    pool: Pool
    slots: int = 8
    policy: Continuous = field(default_factory=Continuous)
    token_budget: int | None = None
    chunked: bool = False
    mixed: bool = True
    reserve: str = "none"
    watermark: float = 0.01
    guesses: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        self.waiting: list[Request] = []  # by arrival
        self.running: list[Request] = []  # in the order they were admitted
        self.held: list[Request] = []  # finished, their slots still taken
        self.serving = False  # whether a run uses it
        self.closed = False  # whether no further request will come: a static batch need not wait for more
        self.batch_steps = 0  # iterations since the batch was last empty
        self._cancelled: deque[Request] = deque()  # to be taken out before the next schedule or commit
        self._starting = Lock()  # while `serving` changes or decides something: other threads wait so long
        self._free_slots = list(range(self.slots))
        self._added = 0

    @property
    def empty(self) -> bool:
        """Whether no slot is taken."""
        return not self.running and not self.held

    @property
    def unfinished(self) -> int:
        """Requests that wait, run or hold a slot."""
        return len(self.waiting) + len(self.running) + len(self.held)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One run uses the scheduler. RuntimeError, and nothing changed, while another does, from whatever thread."""
        with self._starting:
            if self.serving:
                raise RuntimeError("this scheduler serves another run; wait for its end or make another scheduler")
            self.serving = True
        try:
            yield
        finally:
            with self._starting:
                self.serving = False
                self._take_out()  # who was cancelled after the last forward

    def add(self, request: Request) -> None:
        """Queue a request. ValueError if it has been queued or served, or, the request rejected, could never run."""
        if request in self.waiting:
            raise ValueError(f"Request {request.id} waits already; queue it once.")
        if request.state is not State.WAITING or request.computed:
            raise ValueError(f"Request {request.id} is {request.state.value}; hand in request.fresh() to run it again.")
        problem = impossible(self, request)
        if problem:
            request.state, request.error = State.REJECTED, f"Request {request.id} can never run: {problem}"
            raise ValueError(request.error)
        request.turn, self._added = self._added, self._added + 1
        self._queue(request)

    def schedule(self, now: float) -> Plan:
        """Plan the next forward, at `now` seconds. An empty plan: wait for an arrival, or until policy.wake(self)."""
        plan = Plan()
        self._take_out()
        self._end_batch(now)
        if self.mixed:
            self._continue(plan, now)
        self._admit(plan, now)
        if not self.mixed and not plan.rows:
            self._continue(plan, now)
        plan.idle = list(self.held)
        return plan

    def commit(self, plan: Plan, committed: Sequence[Sequence[int]], now: float) -> list[Request]:
        """Note what each row's forward gave, free what finished requests held -> those that finished.

        committed: the new tokens of each row of the plan, else ValueError. now: seconds.
        """
        ended = []
        self._take_out()
        for (request, fed), tokens in zip(plan.rows, committed, strict=True):
            if request.state is not State.RUNNING:
                continue  # cancelled during the forward
            request.commit(fed, tokens, now)
            if request.ids is not None:
                self.pool.store(request)
            if self.guesses:  # room that rejected guesses took
                self.pool.truncate(request, self._reserved(request, 1))
            if request.done:
                ended.append(request)
        for request in ended:
            self._finish(request, now)
        self.batch_steps += 1
        self._end_batch(now)
        return ended

    def cancel(self, request: Request) -> None:
        """Take a request out, whether it waits, runs or is yet to come.

        During a run this happens at the next schedule or commit, never in between, when its blocks are in use: so any
        thread may cancel. Without a run a request that waits or is yet to come is cancelled at once.
        """
        with self._starting:
            if self.serving or request.state is State.RUNNING:
                self._cancelled.append(request)
            else:
                self._remove(request)

    def stop(self, now: float) -> None:
        """Cancel all that run or wait and end a held batch, since a run has broken off: every block is free again."""
        for request in [*self.running, *self.waiting]:
            self.cancel(request)
        self._take_out()
        self._dismiss(now)

    def _take_out(self) -> None:
        """Take out the cancelled requests; their blocks and slots are free."""
        while self._cancelled:
            self._remove(self._cancelled.popleft())

    def _remove(self, request: Request) -> None:
        if request.state is State.RUNNING:
            self._leave(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        if request.state in (State.WAITING, State.RUNNING):
            request.state = State.CANCELLED

    def _continue(self, plan: Plan, now: float) -> None:
        """A row for every running request: one token, or the next part of its prompt."""
        left = self._budget(plan)
        order = list(self.policy.order(self.running, now))
        if self.chunked:
            order.sort(key=lambda request: request.prefilling)  # decoding rows first: prompts get what they leave
        for request in order:
            tokens = self._tokens(request, left)
            if request.state is State.RUNNING and tokens and self._secure(request, tokens, plan, now):
                plan.rows.append((request, tokens))
                left -= tokens

    def _secure(self, request: Request, tokens: int, plan: Plan, now: float) -> bool:
        """Blocks for the next tokens, at the cost of the least urgent; False if that is the request itself."""
        while not self.pool.allocate(request, request.computed + tokens):
            victim = self.policy.order(self.running, now)[-1]
            plan.rows = [row for row in plan.rows if row[0] is not victim]
            plan.preempted.append(victim)
            self._leave(victim)
            victim.restart()
            self._queue(victim)
            if victim is request:
                return False
        return True

    def _admit(self, plan: Plan, now: float) -> None:
        """Let waiting requests in, in order; who does not fit keeps those behind it waiting, so that nobody starves."""
        count = min(self.policy.admit(self, now), len(self._free_slots)) if self._free_slots and self.waiting else 0
        if count > 0:
            for request in list(self.policy.order(self.waiting, now)[:count]):
                if not self._enter(request, plan, now):
                    break

    def _enter(self, request: Request, plan: Plan, now: float) -> bool:
        request.computed = self.pool.match(request)
        tokens = self._tokens(request, self._budget(plan))
        spare = int(self.watermark * self.pool.num_blocks) if self.running else 0
        if not tokens or not self.pool.allocate(request, self._reserved(request, tokens), spare):
            self.pool.release(request)
            request.computed = 0
            return False
        if self.empty:
            self.batch_steps = 0
        request.state, request.slot = State.RUNNING, heapq.heappop(self._free_slots)
        request.admitted = now if request.admitted is None else request.admitted
        request.reused += request.computed
        self.waiting.remove(request)
        self.running.append(request)
        plan.rows.append((request, tokens))
        return True

    def _tokens(self, request: Request, left: float) -> int:
        """Tokens the request feeds in this forward, with `left` of the budget; 0 if none."""
        lacking = request.lacking if request.prefilling else 1 + self.guesses
        return int(min(lacking, left)) if self.chunked or lacking <= left else 0

    def _budget(self, plan: Plan) -> float:
        """What is left of the token budget."""
        return math.inf if self.token_budget is None else self.token_budget - sum(n for _, n in plan.rows)

    def _reserved(self, request: Request, tokens: int) -> int:
        """Tokens to own blocks for, about to feed so many: the whole known text, also if only a part is fed now.

        Where the whole length is reserved, the last step's draft tokens have their room, too.
        """
        most = {"max": request.max_tokens, "oracle": request.length}
        outputs = most[self.reserve] + self.guesses if self.reserve in most else request.emitted + 1
        return max(request.prompt_length + outputs - 1, request.computed + tokens)

    def _end_batch(self, now: float) -> None:
        """Once a held batch has run to its end, its requests leave together."""
        if self.held and not self.running and self.policy.over(self):
            self._dismiss(now)

    def _dismiss(self, now: float) -> None:
        for request in self.held:
            request.finished = now
            self._vacate(request)
        self.held = []

    def _finish(self, request: Request, now: float) -> None:
        request.state, request.finished = State.FINISHED, now
        if self.policy.hold:
            self.running.remove(request)
            self.held.append(request)
        else:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self._vacate(request)

    def _vacate(self, request: Request) -> None:
        self.pool.release(request)
        heapq.heappush(self._free_slots, request.slot)

    def _queue(self, request: Request) -> None:
        insort(self.waiting, request, key=lambda r: (r.arrival, r.turn))


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
