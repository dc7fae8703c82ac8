"""The scheduler (lesson 05): decides which sequences run in the next step and which wait or are preempted.

It keeps three lists: waiting, running and, under static batching, held. A waiting sequence is admitted when a slot and
enough blocks are free. If a running sequence needs a block and none is free, the one admitted last is preempted: its
blocks are freed, it waits again, and its tokens are recomputed later, except for a prefix that the pool still holds.
The engine and the simulator share this module; it imports no torch.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from weakref import WeakSet

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.block_pool import BlockPool


@dataclass(slots=True)
class Row:
    """A sequence in the plan of one step. tokens: number of tokens to feed; after the step, the number that was fed.

    prefilling, cached: whether the step is prefill, and the computed tokens before it.
    """

    seq: Sequence
    tokens: int
    prefilling: bool = field(init=False)
    cached: int = field(init=False)

    def __post_init__(self) -> None:
        self.prefilling, self.cached = self.seq.prefilling, self.seq.num_computed_tokens


@dataclass(slots=True)
class Plan:
    """The plan of one step (vLLM: SchedulerOutput). An empty plan is false: nothing can run now.

    idle: finished sequences whose slots a static batch still holds. preempted: sequences preempted by this plan.
    cached_tokens: computed tokens of all running sequences before the step. budget: number of tokens that may still be
    added to its forward pass.
    """

    rows: list[Row] = field(default_factory=list)
    idle: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    cached_tokens: int = 0
    budget: float = math.inf

    def __bool__(self) -> bool:
        return bool(self.rows or self.idle)

    def add(self, seq: Sequence, tokens: int) -> None:
        """Add a row that feeds `tokens` tokens."""
        self.rows.append(Row(seq, tokens))
        self.budget -= tokens


class Policy:
    """Base class of policies: how many sequences join, and when. They always join in the order of their arrival."""

    hold = False  # whether finished sequences keep their slots until the whole batch has finished

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """Number of waiting sequences that may be admitted now, if slots and blocks are free. Below 1: none."""
        raise NotImplementedError

    def over(self, scheduler: Scheduler) -> bool:
        """Whether a held batch may end now, given that none of its sequences runs."""
        return True

    def wake(self, scheduler: Scheduler) -> float:
        """Time in seconds at which `admit` may return more without a new arrival."""
        return math.inf


class Continuous(Policy):
    """Continuous batching, first come, first served: after every step, waiting sequences fill the free slots."""

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """As many as there are slots."""
        return scheduler.max_num_seqs


@dataclass
class Static(Policy):
    """Static batching: wait until all slots can be filled, then run the batch until its longest sequence ends.

    steps: minimum number of steps of a batch. Set to the longest output of the whole job, it is the naive baseline:
    every batch takes as long as that one request.
    """

    steps: int = 0
    # members of the latest batch; weak, because a policy may outlive its run, and they hold the memory of their caches
    batch: WeakSet[Sequence] = field(default_factory=WeakSet, init=False)
    hold = True

    def admit(self, scheduler: Scheduler, now: float) -> int:
        """A whole batch once all slots are free and it is ready, then its members that wait: put off or preempted."""
        if scheduler.empty and self.ready(scheduler, now):
            self.batch = WeakSet(scheduler.waiting[: scheduler.max_num_seqs])
        return len(list(takewhile(self.batch.__contains__, scheduler.waiting)))

    def ready(self, scheduler: Scheduler, now: float) -> bool:
        """Whether a batch may start: enough sequences wait to fill all slots, or no more will arrive."""
        return len(scheduler.waiting) >= scheduler.max_num_seqs or scheduler.closed

    def over(self, scheduler: Scheduler) -> bool:
        """Whether the batch has run at least `steps` steps."""
        return scheduler.batch_steps >= self.steps


@dataclass
class Dynamic(Static):
    """Dynamic batching: static batching in which a batch waits at most `window` seconds after its first arrival."""

    window: float = 0.1

    def ready(self, scheduler: Scheduler, now: float) -> bool:
        """As in Static, or once the first waiting sequence has waited `window` seconds."""
        return super().ready(scheduler, now) or now >= self.wake(scheduler)

    def wake(self, scheduler: Scheduler) -> float:
        """Time at which the first waiting sequence will have waited `window` seconds; infinity if none waits."""
        return scheduler.waiting[0].arrival + self.window if scheduler.waiting else math.inf


@dataclass
class Scheduler:
    """Plans every step: the sequences that run and the number of tokens that each feeds.

    max_num_seqs: maximum number of sequences that run at once, which is the number of slots.
    max_num_batched_tokens: maximum number of tokens in one forward pass (None: no limit).
    enable_chunked_prefill: a prompt may be fed in parts, so that decoding sequences never wait for a long one.
    mixed: whether prompts and decoding sequences share a forward pass. If not, prompts go first, in their own pass.
    reserve: blocks to allocate at admission: "none" (only for the prompt; more as the text grows, preempting others if
    necessary), "max" (for max_tokens) or "oracle" (for the true length).
    watermark: fraction of the pool that admission leaves free.
    num_speculative_tokens: maximum number of draft tokens of a decoding sequence per step.
    """

    pool: BlockPool
    max_num_seqs: int = 8
    policy: Policy = field(default_factory=Continuous)
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = False
    mixed: bool = True
    reserve: str = "none"
    watermark: float = 0.01
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        self.waiting: list[Sequence] = []  # by arrival
        self.running: list[Sequence] = []  # in the order they were admitted
        self.held: list[Sequence] = []  # finished, but still in their slots
        self.serving = False  # whether a run uses this scheduler
        self.closed = False  # whether no further request will arrive: a static batch need not wait for more
        self.batch_steps = 0  # steps since the batch was last empty
        self._cancelled: deque[Sequence] = deque()  # to be removed at the next schedule or commit
        self._starting = Lock()  # held while `serving` changes, or while something depends on it
        self._added = 0

    @property
    def empty(self) -> bool:
        """Whether all slots are free."""
        return not self.running and not self.held

    @property
    def unfinished(self) -> int:
        """Number of sequences that wait, run or hold a slot."""
        return len(self.waiting) + len(self.running) + len(self.held)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Reserve the scheduler for one run, against other runs in this or another thread."""
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
        """Append a sequence to the waiting list (vLLM: add_request). ValueError if it already waits or has run.

        A sequence that could never run is rejected: it gets an `error`, and ValueError is raised.
        """
        if seq in self.waiting:
            raise ValueError(f"Request {seq.id} waits already; queue it once.")
        if seq.status is not Status.WAITING or seq.num_computed_tokens:
            raise ValueError(f"Request {seq.id} is {seq.status.value}; make a new request, or copy one with fresh().")
        problem = impossible(self, seq)
        if problem:
            seq.status, seq.error = Status.REJECTED, f"Request {seq.id} can never run: {problem}"
            raise ValueError(seq.error)
        seq.turn, self._added = self._added, self._added + 1
        self._queue(seq)

    def schedule(self, now: float) -> Plan:
        """Plan the next step at time `now`. After an empty plan, wait for an arrival or until policy.wake(self)."""
        plan = Plan(budget=math.inf if self.max_num_batched_tokens is None else self.max_num_batched_tokens)
        self._remove_cancelled()
        self._end_batch(now)
        # running sequences first, or, if not mixed, only when no prompt was admitted
        if self.mixed:
            self._continue(plan)
        if not plan.preempted:  # blocks were short: a request admitted now would take those that the running need next
            self._admit(plan, now)
        if not self.mixed and not plan.rows:
            self._continue(plan)
        plan.idle = list(self.held)
        plan.cached_tokens = sum([seq.num_computed_tokens for seq in self.running])
        return plan

    def commit(self, plan: Plan, committed: list[list[int]], now: float) -> list[Sequence]:
        """Record that a step ended at time `now` (vLLM: update_from_output) -> the sequences that have finished.

        Their slots and blocks are freed. committed: the new tokens of each row, already appended to its sequence.
        """
        ended = []
        self._remove_cancelled()
        for row, tokens in zip(plan.rows, committed, strict=True):
            seq = row.seq
            if seq.status is not Status.RUNNING:
                continue  # cancelled during the step
            seq.times.extend([now] * len(tokens))
            if seq.ids is not None:
                self.pool.store(seq)
            if self.num_speculative_tokens:  # free the blocks of rejected draft tokens
                self.pool.truncate(seq, self._reserved(seq, 1))
            if seq.finish_reason is not None:
                ended.append(seq)
        for seq in ended:
            self._finish(seq, now)
        self.batch_steps += 1
        self._end_batch(now)
        return ended

    def cancel(self, seq: Sequence) -> None:
        """Cancel a sequence that waits, runs or has not arrived yet (vLLM: finish_requests). Thread-safe.

        During a run it is removed at the next schedule or commit, never in between, while its blocks are in use.
        Outside a run, a sequence that does not run is cancelled at once.
        """
        with self._starting:
            if self.serving or seq.status is Status.RUNNING:
                self._cancelled.append(seq)
            else:
                self._remove(seq)

    def stop(self, now: float) -> None:
        """Cancel all running and waiting sequences and end a held batch, after a run failed. Frees every block."""
        for seq in [*self.running, *self.waiting]:
            self._remove(seq)
        self._release_held(now)

    # Planning: continue the running, then admit the waiting.

    def _continue(self, plan: Plan) -> None:
        """Add a row for each running sequence: a decode step, or the next chunk of its prompt."""
        # decode steps first: prompt chunks get the rest of the budget
        for seq in sorted(self.running, key=lambda seq: seq.prefilling):
            tokens = self._tokens(seq, plan)
            if seq.status is Status.RUNNING and tokens and self._allocate_or_preempt(seq, tokens, plan):
                plan.add(seq, tokens)

    def _allocate_or_preempt(self, seq: Sequence, tokens: int, plan: Plan) -> bool:
        """Allocate blocks for the next tokens, preempting the sequences admitted last as long as none is free.

        Returns False if the sequence itself was preempted.
        """
        while not self.pool.allocate(seq, seq.num_computed_tokens + tokens):
            # It has no row yet: only decoding sequences lack blocks, and `_continue` takes them in order of admission
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence, plan: Plan) -> None:
        """Free a sequence's slot and blocks, and queue it again by its arrival.

        Blocks that hold cached prefixes stay findable in the pool until they are needed; the rest is computed again.
        """
        plan.preempted.append(seq)
        self._leave(seq)
        seq.restart()
        self._queue(seq)

    def _admit(self, plan: Plan, now: float) -> None:
        """Admit waiting sequences in order. The first that does not fit blocks those after it, so that none starves."""
        free_slots = self.max_num_seqs - len(self.running) - len(self.held)
        if free_slots and self.waiting:
            count = min(self.policy.admit(self, now), free_slots)
            for seq in self.waiting[: max(0, count)]:
                if not self._admit_one(seq, plan, now):
                    break

    def _admit_one(self, seq: Sequence, plan: Plan, now: float) -> bool:
        # take the blocks: first a cached prefix, then new ones; undo both if they do not fit
        seq.num_computed_tokens = self.pool.match(seq)
        tokens = self._tokens(seq, plan)
        spare = int(self.watermark * self.pool.num_blocks) if self.running else 0
        if not tokens or not self.pool.allocate(seq, self._reserved(seq, tokens), spare):
            self.pool.release(seq)
            seq.num_computed_tokens = 0
            return False
        # take a slot and run
        if self.empty:
            self.batch_steps = 0
        seq.status = Status.RUNNING
        seq.cache = None  # the engine makes one over these blocks
        if seq.admitted is None:  # after a preemption it finds blocks of its own, which do not count as reused
            seq.admitted, seq.reused = now, seq.num_computed_tokens
        self.waiting.remove(seq)
        self.running.append(seq)
        plan.add(seq, tokens)
        return True

    def _tokens(self, seq: Sequence, plan: Plan) -> int:
        """Number of tokens to feed in this step; 0 if they exceed the budget that is left."""
        wanted = seq.num_uncomputed_tokens if seq.prefilling else 1 + self.num_speculative_tokens
        return int(min(wanted, plan.budget)) if self.enable_chunked_prefill or wanted <= plan.budget else 0

    def _reserved(self, seq: Sequence, tokens: int) -> int:
        """Number of tokens to allocate blocks for when `tokens` are about to be fed.

        This is the whole text even if only a chunk of it is fed now. With reserve "max" or "oracle" it is the final
        length, plus the draft tokens of the last step.
        """
        most = {"max": seq.max_tokens, "oracle": seq.length}.get(self.reserve)
        outputs = seq.num_output_tokens + 1 if most is None else most + self.num_speculative_tokens
        return max(seq.prompt_length + outputs - 1, seq.num_computed_tokens + tokens)

    def _queue(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=lambda seq: (seq.arrival, seq.turn))

    # Leaving: a sequence finishes, is preempted or is cancelled, or its static batch ends.

    def _finish(self, seq: Sequence, now: float) -> None:
        seq.status, seq.finished = Status.FINISHED, now
        if self.policy.hold:
            self.running.remove(seq)
            self.held.append(seq)
        else:
            self._leave(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.pool.release(seq)

    def _end_batch(self, now: float) -> None:
        """Release all sequences of a held batch together once it may end."""
        if self.held and not self.running and self.policy.over(self):
            self._release_held(now)

    def _release_held(self, now: float) -> None:
        for seq in self.held:
            seq.finished = now
            self.pool.release(seq)
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
    """Check the settings of a scheduler."""
    if scheduler.max_num_seqs < 1:
        raise ValueError(f"max_num_seqs must be at least 1, not {scheduler.max_num_seqs}.")
    if scheduler.reserve not in ("none", "max", "oracle"):
        raise ValueError(f"reserve is 'none', 'max' or 'oracle', not {scheduler.reserve!r}.")
    if scheduler.num_speculative_tokens < 0 or not 0 <= scheduler.watermark < 1:
        raise ValueError("num_speculative_tokens is at least 0 and watermark a share of the pool from 0 to below 1.")
    budget, decoding = scheduler.max_num_batched_tokens, scheduler.max_num_seqs * (1 + scheduler.num_speculative_tokens)
    if budget is not None and budget < decoding:
        raise ValueError(f"max_num_batched_tokens must cover {decoding} tokens, one step of all slots, not {budget}.")
    if scheduler.enable_chunked_prefill and (budget is None or not scheduler.mixed):
        raise ValueError(
            "enable_chunked_prefill=True needs max_num_batched_tokens, and mixed=True: prompts run beside decoding."
        )


def impossible(scheduler: Scheduler, seq: Sequence) -> str | None:
    """The reason why a sequence could never run to its end, or None if it can."""
    pool, budget = scheduler.pool, scheduler.max_num_batched_tokens
    longest = cached_tokens(seq.prompt_length, seq.length if scheduler.reserve == "oracle" else seq.max_tokens)
    need, room = longest + scheduler.num_speculative_tokens, pool.num_blocks * pool.block_size
    if need > room:
        return f"prompt and output need {need} cached tokens, the pool has room for {room}."
    at_once = longest if scheduler.reserve == "none" else seq.prompt_length  # preempted: also refeeds its output
    if budget is not None and not scheduler.enable_chunked_prefill and at_once > budget:
        return f"up to {at_once} tokens at once, max_num_batched_tokens is {budget}; set enable_chunked_prefill=True."
    return None
