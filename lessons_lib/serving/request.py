"""A request on its way through the engine, and a scheduler's plan for one step (lesson 05)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from lessons_lib.measure.timeline import Timeline

if TYPE_CHECKING:
    from lessons_lib.serving.scheduler import Scheduler


class State(Enum):
    """Where a request stands. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """One request; times are seconds on the clock of whoever serves it.

    id: any unique name. prompt_length: P, the ids' count if ids are given (0 means: take it from there).
    output_length: tokens that will come, which only the simulator and an oracle know; max_tokens: the limit that
    every policy may see, output_length if None. ids: prompt and committed tokens, where they matter (prefix caching,
    the engine). reply: the tokens that a simulated server answers, no fewer than will come. priority: smaller is more
    urgent, for policies that look at it. error: why a request failed or was refused. ValueError for what cannot be.
    """

    id: int | str
    arrival: float = 0.0
    prompt_length: int = 0
    output_length: int = 1
    max_tokens: int | None = None
    ids: list[int] | None = None
    reply: Sequence[int] | None = None
    priority: float = 0.0

    state: State = State.WAITING
    computed: int = 0  # tokens whose keys and values are cached
    emitted: int = 0
    slot: int | None = None
    turn: int = 0  # place among those that arrived together, given by the scheduler
    stopped: bool = False  # set by an engine that saw an end of text: the output ends here
    admitted: float | None = None  # when it first got a slot
    finished: float | None = None  # when it left; under static batching with its batch
    times: list[float] = field(default_factory=list)  # one per emitted token
    reused: int = 0  # prompt tokens found in the prefix cache, summed over admissions
    preemptions: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        if self.ids is not None and self.prompt_length not in (0, len(self.ids)):
            raise ValueError(f"Request {self.id}: prompt_length {self.prompt_length}, but {len(self.ids)} ids.")
        self.prompt_length = self.prompt_length or len(self.ids or ())
        self.max_tokens = self.output_length if self.max_tokens is None else self.max_tokens
        if self.prompt_length < 1 or self.output_length < 1 or self.max_tokens < 1:
            raise ValueError(f"Request {self.id} needs at least one prompt token and one output token.")
        if not 0 <= self.arrival < math.inf:
            raise ValueError(f"Request {self.id} arrives at {self.arrival} s; arrivals start at 0 and are finite.")
        if self.reply is not None and len(self.reply) < self.length:
            raise ValueError(f"Request {self.id}: a reply of {len(self.reply)} tokens, but {self.length} are to come.")

    @property
    def length(self) -> int:
        """Tokens it will get, unless a text ends before."""
        return min(self.output_length, self.max_tokens)

    @property
    def known(self) -> int:
        """Tokens known so far, prompt and output: P + n."""
        return self.prompt_length + self.emitted

    @property
    def lacking(self) -> int:
        """Known tokens that are not cached: 1 while decoding, the rest of the prompt before that."""
        return self.prompt_length + self.emitted - self.computed

    @property
    def prefilling(self) -> bool:
        """Whether the next forward works on a prompt, or rebuilds one after a preemption."""
        return self.emitted == 0 or self.lacking > 1

    @property
    def done(self) -> bool:
        """Whether its last token has been emitted."""
        return self.stopped or self.emitted >= self.length

    def commit(self, fed: int, tokens: Sequence[int], now: float) -> None:
        """Note a forward over `fed` tokens that gave these new ones: none from a part of a prompt, n if speculated.

        now: when it ended, in seconds.
        """
        if tokens:
            self.emitted += len(tokens)
            self.times.extend([now] * len(tokens))
            if self.ids is not None:
                self.ids.extend(tokens)
        self.computed = min(self.computed + fed, self.known - 1) if not tokens else self.known - 1

    def restart(self) -> None:
        """Preempted: its keys and values are gone; what was emitted stays and becomes part of the prompt to rebuild."""
        self.state, self.slot, self.computed = State.WAITING, None, 0
        self.preemptions += 1

    def timeline(self) -> Timeline:
        """Arrival and token times, from which measure.timeline takes TTFT, ITL, TPOT and the end-to-end latency."""
        return Timeline(self.arrival, self.times)

    def fresh(self) -> Request:
        """The same request, not served yet: for the next run of a workload."""
        ids = None if self.ids is None else self.ids[: self.prompt_length]
        return Request(
            self.id, self.arrival, self.prompt_length, self.output_length, self.max_tokens, ids, self.reply,
            self.priority,
        )  # fmt: skip


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
