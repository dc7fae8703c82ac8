"""The scheduler (lesson 05): which sequences run in the next step, in what order, and which wait or are preempted.

It keeps three lists: waiting, running and, under static batching, held. A sequence enters when a slot and enough blocks
are free. If a running one needs a block and none is left, the least urgent is preempted: it gives all its blocks back,
waits again, and is recomputed later. The engine and the simulator share this; nothing here needs torch.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.block_pool import BlockPool


@dataclass(slots=True)
class Plan:
    """One step. An empty plan is false: nothing can run now.

    rows: (sequence, tokens to feed). idle: finished sequences whose slots a static batch still holds. preempted: those
    that lost their blocks while this was planned. before: for each row whether it prefills, and its computed tokens;
    cached_tokens: computed tokens of all running sequences. Both as they are when the step begins.
    """

    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    idle: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    before: list[tuple[bool, int]] = field(default_factory=list)
    cached_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.rows or self.idle)


class Continuous:
    """Continuous batching, first come, first served: after every step waiting sequences take the free slots."""

    hold = False  # whether finished sequences keep their slots until the whole batch has finished

    def order(self, seqs: list[Sequence], now: float) -> list[Sequence]:
        """Most urgent first. The waiting come sorted by arrival, the running in the order they were admitted."""
        return seqs

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """How many waiting sequences may enter now; free slots and free blocks limit it further."""
        return scheduler.max_num_seqs

    def over(self, scheduler: Scheduler) -> bool:
        """Whether a held batch may end once all its sequences have finished."""
        return True

    def wake(self, scheduler: Scheduler) -> float:
        """Time at which `admit` may change its mind without an arrival."""
        return math.inf


class ShortestFirst(Continuous):
    """The fewest tokens left go first, by the limit that the client sent. Long requests may starve."""

    def order(self, seqs: list[Sequence], now: float) -> list[Sequence]:
        """By max_tokens less the output so far, ascending."""
        return sorted(seqs, key=lambda seq: seq.max_tokens - seq.num_output_tokens)


@dataclass
class Static(Continuous):
    """Static batching: wait until all slots can be filled, then run that batch until its longest member ends.

    steps: a batch runs at least so many steps; with the longest output of the whole job this is the naive baseline that
    gives every request the same length.
    """

    steps: int = 0
    hold = True

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """All slots once none is taken and enough sequences wait, or no more will come; else 0."""
        ready = len(scheduler.waiting) >= scheduler.max_num_seqs or scheduler.closed
        return scheduler.max_num_seqs if scheduler.empty and ready else 0

    def over(self, scheduler: Scheduler) -> bool:
        """Whether the batch has run `steps` steps."""
        return scheduler.batch_steps >= self.steps


@dataclass
class Dynamic(Static):
    """Naive dynamic batching: as static, but a batch starts at the latest `window` seconds after its first arrival."""

    window: float = 0.1

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """As Static, and all slots once the first in the queue has waited `window` seconds."""
        due = scheduler.waiting and now >= self.wake(scheduler)
        return scheduler.max_num_seqs if scheduler.empty and due else super().admit(scheduler, now)

    def wake(self, scheduler: Scheduler) -> float:
        """When the first in the queue will have waited `window` seconds; infinity without one."""
        return scheduler.waiting[0].arrival + self.window if scheduler.waiting else math.inf


@dataclass
class Scheduler:
    """Picks the rows of every step. ValueError for settings that cannot work.

    max_num_seqs: sequences that run at once, at most; each has one of so many slots. max_num_batched_tokens: tokens in
    one forward pass, at most (None: any number). chunked: a prompt may be fed in parts, so that decoding rows never
    wait for a long one. mixed: prompts and decoding rows share a forward pass; if not, prompts go first and alone.
    reserve: blocks taken at admission, "none" (for the prompt; more as it grows, preempting others if need be), "max"
    (for max_tokens) or "oracle" (for the true length). watermark: share of the pool that admission leaves free.
    num_speculative_tokens: draft tokens that a decoding row may feed beside its one.
    """

    pool: BlockPool
    max_num_seqs: int = 8
    policy: Continuous = field(default_factory=Continuous)
    max_num_batched_tokens: int | None = None
    chunked: bool = False
    mixed: bool = True
    reserve: str = "none"
    watermark: float = 0.01
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        self.waiting: list[Sequence] = []  # by arrival
        self.running: list[Sequence] = []  # in the order they were admitted
        self.held: list[Sequence] = []  # finished, their slots still taken
        self.serving = False  # whether a run uses it
        self.closed = False  # whether no further request will come: a static batch need not wait for more
        self.batch_steps = 0  # steps since the batch was last empty
        self._cancelled: deque[Sequence] = deque()  # to be removed before the next schedule or commit
        self._starting = Lock()  # held while `serving` changes, or while something depends on it
        self._free_slots = list(range(self.max_num_seqs))
        self._added = 0

    @property
    def empty(self) -> bool:
        """Whether no slot is taken."""
        return not self.running and not self.held

    @property
    def unfinished(self) -> int:
        """Sequences that wait, run or hold a slot."""
        return len(self.waiting) + len(self.running) + len(self.held)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let one run use the scheduler. RuntimeError, and nothing changed, while another does, from any thread."""
        with self._starting:
            if self.serving:
                raise RuntimeError("this scheduler serves another run; wait for its end or make another scheduler")
            self.serving = True
        try:
            yield
        finally:
            with self._starting:
                self.serving = False
                self._remove_cancelled()  # those cancelled after the last step

    def add(self, seq: Sequence) -> None:
        """Queue a sequence. ValueError if it waits or ran already, and, with it rejected, if it could never run."""
        if seq in self.waiting:
            raise ValueError(f"Request {seq.id} waits already; queue it once.")
        if seq.status is not Status.WAITING or seq.num_computed_tokens:
            raise ValueError(f"Request {seq.id} is {seq.status.value}; hand in request.fresh() to run it again.")
        problem = impossible(self, seq)
        if problem:
            seq.status, seq.error = Status.REJECTED, f"Request {seq.id} can never run: {problem}"
            raise ValueError(seq.error)
        seq.turn, self._added = self._added, self._added + 1
        self._queue(seq)

    def schedule(self, now: float) -> Plan:
        """Plan the next step, at `now` seconds. An empty plan: wait for an arrival, or until policy.wake(self)."""
        plan = Plan()
        self._remove_cancelled()
        self._end_batch(now)
        if self.mixed:
            self._continue(plan, now)
        self._admit(plan, now)
        if not self.mixed and not plan.rows:
            self._continue(plan, now)
        plan.idle = list(self.held)
        plan.before = [(seq.prefilling, seq.num_computed_tokens) for seq, _ in plan.rows]
        plan.cached_tokens = sum([seq.num_computed_tokens for seq in self.running])
        return plan

    def commit(self, plan: Plan, committed: list[list[int]], now: float) -> list[Sequence]:
        """Note that a step ended at `now` seconds, and free what finished sequences held -> those that finished.

        committed: the new tokens of each row of the plan, which its sequence holds already; else ValueError.
        """
        ended = []
        self._remove_cancelled()
        for (seq, _), tokens in zip(plan.rows, committed, strict=True):
            if seq.status is not Status.RUNNING:
                continue  # cancelled during the step
            seq.times.extend([now] * len(tokens))
            if seq.ids is not None:
                self.pool.store(seq)
            if self.num_speculative_tokens:  # give back the room of rejected draft tokens
                self.pool.truncate(seq, self._reserved(seq, 1))
            if seq.finish_reason is not None:
                ended.append(seq)
        for seq in ended:
            self._finish(seq, now)
        self.batch_steps += 1
        self._end_batch(now)
        return ended

    def cancel(self, seq: Sequence) -> None:
        """Take a sequence out, whether it waits, runs or is yet to come; from any thread.

        During a run this happens at the next schedule or commit, never in between, when its blocks are in use. Without
        a run a sequence that waits or is yet to come is cancelled at once.
        """
        with self._starting:
            if self.serving or seq.status is Status.RUNNING:
                self._cancelled.append(seq)
            else:
                self._remove(seq)

    def stop(self, now: float) -> None:
        """Cancel all that run or wait and end a held batch, after a run broke off: every block is free again."""
        for seq in [*self.running, *self.waiting]:
            self.cancel(seq)
        self._remove_cancelled()
        self._dismiss(now)

    # Planning: continue the running, then admit the waiting.

    def _continue(self, plan: Plan, now: float) -> None:
        """A row for every running sequence: one token, or the next part of its prompt."""
        left = self._budget(plan)
        order = list(self.policy.order(self.running, now))
        if self.chunked:
            order.sort(key=lambda seq: seq.prefilling)  # decoding rows first: prompts get what they leave
        for seq in order:
            tokens = self._tokens(seq, left)
            if seq.status is Status.RUNNING and tokens and self._secure(seq, tokens, plan, now):
                plan.rows.append((seq, tokens))
                left -= tokens

    def _secure(self, seq: Sequence, tokens: int, plan: Plan, now: float) -> bool:
        """Get blocks for the next tokens, preempting the least urgent; False if that is the sequence itself."""
        while not self.pool.allocate(seq, seq.num_computed_tokens + tokens):
            victim = self.policy.order(self.running, now)[-1]
            plan.rows = [row for row in plan.rows if row[0] is not victim]
            plan.preempted.append(victim)
            self._leave(victim)
            victim.restart()
            self._queue(victim)
            if victim is seq:
                return False
        return True

    def _admit(self, plan: Plan, now: float) -> None:
        """Let waiting sequences in, in order. One that does not fit keeps those after it waiting: nobody starves."""
        count = min(self.policy.admit(self, now), len(self._free_slots)) if self._free_slots and self.waiting else 0
        if count > 0:
            for seq in list(self.policy.order(self.waiting, now)[:count]):
                if not self._enter(seq, plan, now):
                    break

    def _enter(self, seq: Sequence, plan: Plan, now: float) -> bool:
        seq.num_computed_tokens = self.pool.match(seq)
        tokens = self._tokens(seq, self._budget(plan))
        spare = int(self.watermark * self.pool.num_blocks) if self.running else 0
        if not tokens or not self.pool.allocate(seq, self._reserved(seq, tokens), spare):
            self.pool.release(seq)
            seq.num_computed_tokens = 0
            return False
        if self.empty:
            self.batch_steps = 0
        seq.status, seq.slot = Status.RUNNING, heapq.heappop(self._free_slots)
        seq.admitted = now if seq.admitted is None else seq.admitted
        seq.reused += seq.num_computed_tokens
        self.waiting.remove(seq)
        self.running.append(seq)
        plan.rows.append((seq, tokens))
        return True

    def _tokens(self, seq: Sequence, left: float) -> int:
        """Tokens the sequence feeds in this step, with `left` of the budget; 0 if none."""
        wanted = seq.num_uncomputed_tokens if seq.prefilling else 1 + self.num_speculative_tokens
        return int(min(wanted, left)) if self.chunked or wanted <= left else 0

    def _budget(self, plan: Plan) -> float:
        """Tokens that this forward pass may still take."""
        most = self.max_num_batched_tokens
        return math.inf if most is None else most - sum(n for _, n in plan.rows)

    def _reserved(self, seq: Sequence, tokens: int) -> int:
        """Tokens to own blocks for, about to feed so many: the whole text, also if only a part of it is fed now.

        Where the whole length is reserved, the last step's draft tokens have their room, too.
        """
        most = {"max": seq.max_tokens, "oracle": seq.length}.get(self.reserve)
        outputs = seq.num_output_tokens + 1 if most is None else most + self.num_speculative_tokens
        return max(seq.prompt_length + outputs - 1, seq.num_computed_tokens + tokens)

    def _queue(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=lambda seq: (seq.arrival, seq.turn))

    # Leaving: finished, preempted, cancelled, or with a static batch.

    def _finish(self, seq: Sequence, now: float) -> None:
        seq.status, seq.finished = Status.FINISHED, now
        if self.policy.hold:
            self.running.remove(seq)
            self.held.append(seq)
        else:
            self._leave(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._vacate(seq)

    def _vacate(self, seq: Sequence) -> None:
        self.pool.release(seq)
        heapq.heappush(self._free_slots, seq.slot)

    def _end_batch(self, now: float) -> None:
        """Once a held batch has run to its end, its sequences leave together."""
        if self.held and not self.running and self.policy.over(self):
            self._dismiss(now)

    def _dismiss(self, now: float) -> None:
        for seq in self.held:
            seq.finished = now
            self._vacate(seq)
        self.held = []

    def _remove_cancelled(self) -> None:
        while self._cancelled:
            self._remove(self._cancelled.popleft())

    def _remove(self, seq: Sequence) -> None:
        if seq.status is Status.RUNNING:
            self._leave(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        if seq.status in (Status.WAITING, Status.RUNNING):
            seq.status = Status.CANCELLED


def check_settings(scheduler: Scheduler) -> None:
    """ValueError, saying what to do, for settings that cannot work."""
    if scheduler.max_num_seqs < 1:
        raise ValueError(f"max_num_seqs must be at least 1, not {scheduler.max_num_seqs}.")
    if scheduler.reserve not in ("none", "max", "oracle"):
        raise ValueError(f"reserve is 'none', 'max' or 'oracle', not {scheduler.reserve!r}.")
    if scheduler.num_speculative_tokens < 0 or not 0 <= scheduler.watermark < 1:
        raise ValueError("num_speculative_tokens is at least 0 and watermark a share of the pool from 0 to below 1.")
    budget, decoding = scheduler.max_num_batched_tokens, scheduler.max_num_seqs * (1 + scheduler.num_speculative_tokens)
    if budget is not None and budget < decoding:
        raise ValueError(f"max_num_batched_tokens must cover {decoding} tokens, one step of all slots, not {budget}.")
    if scheduler.chunked and (budget is None or not scheduler.mixed):
        raise ValueError("chunked=True needs max_num_batched_tokens, and mixed=True: prompts run beside decoding.")


def impossible(scheduler: Scheduler, seq: Sequence) -> str | None:
    """Why a sequence could never run to its end, or None."""
    pool, budget = scheduler.pool, scheduler.max_num_batched_tokens
    longest = cached_tokens(seq.prompt_length, seq.max_tokens)
    need, room = longest + scheduler.num_speculative_tokens, pool.num_blocks * pool.block_size
    if need > room:
        return f"prompt and output need {need} cached tokens, the pool has room for {room}."
    at_once = longest if scheduler.reserve == "none" else seq.prompt_length  # a preempted one is fed whole again
    if budget is not None and not scheduler.chunked and at_once > budget:
        return f"up to {at_once} tokens at once, max_num_batched_tokens is {budget}; set chunked=True."
    return None
