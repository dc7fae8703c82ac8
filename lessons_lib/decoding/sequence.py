"""A sequence (lessons 01, 05): one text in the making, from its prompt to its last token.

`generate` makes one and repeats the decoding step on it. The engine makes many, and its scheduler decides which run in
each step. The simulator schedules them too, and needs only their lengths. Nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from lessons_lib.measure.clock import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lessons_lib.caches.cache import Cache
    from lessons_lib.decoding.draft_tree import DraftTree
    from lessons_lib.decoding.generate import StepStats
    from lessons_lib.decoding.proposers import Proposer
    from lessons_lib.decoding.sampling import Acceptance
    from lessons_lib.decoding.text import StoppedText


class Status(Enum):
    """Where a sequence stands. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass
class StoppingCriteria:
    """What ends a text before its last token.

    min_new_tokens: no end token counts before so many. eos: the end tokens. stop: the new text and its stop texts,
    given every new token once; None without stop texts.
    """

    min_new_tokens: int = 0
    eos: frozenset[int] = frozenset()
    stop: StoppedText | None = None

    def reason(self, token: int, count: int) -> str | None:
        """Why the text ends with this token, the `count`-th new one: "eos", "stop", or None if it goes on."""
        if self.stop:
            self.stop.add(token)
        if token in self.eos and count > self.min_new_tokens:
            return "eos"
        return "stop" if self.stop and self.stop.ended else None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """A prompt, the output that follows it, and all that its next step needs.

    prompt_length: tokens of the prompt, taken from `ids` where those are given. output_length: output tokens there will
    be, which only the simulator and an oracle know. max_tokens: the limit that every policy may see (None:
    output_length). ids: prompt and output tokens; None where only lengths matter, as in most simulations. reply: the
    output that the simulator gives it. priority: for policies that look at it, smaller is more urgent. Times are
    seconds on the clock of the run.
    """

    id: int | str = 0
    arrival: float = 0.0
    prompt_length: int = 0
    output_length: int = 1
    max_tokens: int | None = None
    ids: list[int] | None = None
    reply: list[int] | None = None
    priority: float = 0.0

    num_output_tokens: int = 0
    num_computed_tokens: int = 0  # tokens whose keys and values are cached
    finish_reason: str | None = None  # "eos", "stop" or "length"
    status: Status = Status.WAITING
    error: str | None = None  # why it failed or was rejected

    # Decoding: what `generate.ready` gives it.
    cache: Cache | None = None
    proposer: Proposer | None = None
    acceptance: Acceptance | None = None
    generator: torch.Generator | None = None
    stopping: StoppingCriteria | None = None
    context: int | None = None  # positions of the target
    on_tokens: Callable[[list[int]], None] | None = None  # called with the new tokens of every step
    tree: DraftTree | None = None  # of the step at hand; None while its pass does not reach the newest token
    stats: list[StepStats] = field(default_factory=list)  # one a forward pass

    # Serving: kept by the scheduler and its block pool.
    num_scheduled_tokens: int | None = None  # may be fed in this step, draft tokens included; None: any number
    block_table: list[int] = field(default_factory=list)  # its KV cache blocks, in order
    block_hashes: list[bytes] = field(default_factory=list)  # of the full ones that its block pool knows
    slot: int | None = None
    turn: int = 0  # order among those that arrived together, given by the scheduler
    admitted: float | None = None  # when it first ran
    finished: float | None = None  # when it left; under static batching with its batch
    times: list[float] = field(default_factory=list)  # one per output token
    reused: int = 0  # prompt tokens found in the prefix cache, summed over admissions
    preemptions: int = 0

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
        """Output tokens it gets, unless a text ends earlier."""
        return min(self.output_length, self.max_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens so far, prompt and output: P + n."""
        return self.prompt_length + self.num_output_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens the cache does not hold yet: 1 while decoding, the rest of the prompt before that."""
        return self.prompt_length + self.num_output_tokens - self.num_computed_tokens

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self.ids[: self.prompt_length]

    @property
    def output_ids(self) -> list[int]:
        """The tokens of the output so far."""
        return self.ids[self.prompt_length :]

    @property
    def uncomputed_ids(self) -> list[int]:
        """The tokens to feed in this step before any draft: all that are uncomputed, or as many as are scheduled."""
        start = self.num_computed_tokens
        return self.ids[start : None if self.num_scheduled_tokens is None else start + self.num_scheduled_tokens]

    @property
    def prefilling(self) -> bool:
        """Whether the next forward pass works on the prompt, or recomputes the text after a preemption."""
        return self.num_output_tokens == 0 or self.num_uncomputed_tokens > 1

    def commit(self, fed: int, tokens: list[int]) -> None:
        """Count a step that fed `fed` tokens and gave these new ones: none from a part of a prompt, else at least one.

        Afterwards all but the newest token are computed; entries of rejected draft tokens are dropped.
        """
        if not tokens:
            self.num_computed_tokens += fed
            return
        self.num_output_tokens += len(tokens)
        if self.ids is not None:
            self.ids.extend(tokens)
        self.num_computed_tokens = self.num_tokens - 1
        if self.num_output_tokens >= self.length and self.finish_reason is None:
            self.finish_reason = "length"

    def restart(self) -> None:
        """Wait again after a preemption: keys and values are lost, the output so far is recomputed with the prompt."""
        self.status, self.slot, self.num_computed_tokens = Status.WAITING, None, 0
        self.preemptions += 1

    def timeline(self) -> Timeline:
        """Arrival and token times, from which measure.clock takes TTFT, ITL, TPOT and the end-to-end latency."""
        return Timeline(self.arrival, self.times)

    def fresh(self) -> Sequence:
        """The same request, not served yet: for the next run of a workload."""
        ids = None if self.ids is None else self.prompt_ids
        return Sequence(
            self.id, self.arrival, self.prompt_length, self.output_length, self.max_tokens, ids, self.reply,
            self.priority,
        )  # fmt: skip
