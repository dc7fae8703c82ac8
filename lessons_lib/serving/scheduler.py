"""The scheduler (lesson 05): which requests the next forward works on, and how many tokens of each.

An iteration is schedule, run, commit:

    plan = scheduler.schedule(now)               # rows: (request, tokens to feed)
    committed = ...                              # run them: one list of new tokens per row, empty for part of a prompt
    ended = scheduler.commit(plan, committed, now)

It knows no model and no clock, so that the simulator and the engine share it. Blocks come from a pool.Pool: match,
allocate, store, truncate and release; the tokens of a request always own blocks before the forward that caches them.
Preemption is by recompute: the victim gives all its blocks back and rebuilds its keys and values later.
Source: Yu et al. 2022 (Orca); Kwon et al. 2023 (vLLM: blocks, preemption); Agrawal et al. 2023 (chunked prefill).
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from lessons_lib.serving.limits import check_settings, impossible
from lessons_lib.serving.plan import Plan
from lessons_lib.serving.policies import Continuous
from lessons_lib.serving.pool import Pool
from lessons_lib.serving.request import Request, State


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
