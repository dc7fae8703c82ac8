"""A sequence (lessons 01, 05): one text in the making, from its prompt to its last token.

The engine's scheduler decides which sequences run in each step. The simulator schedules them too, and needs only their
lengths. Nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from lessons_lib.measure.timeline import Timeline


class Status(Enum):
    """Where a sequence stands. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """A prompt and the output that follows it. Times are seconds on the clock of the run.

    prompt_length: tokens of the prompt, taken from `ids` where those are given. output_length: output tokens there will
    be, which only the simulator and an oracle know. max_tokens: the limit that every policy may see (None:
    output_length). ids: prompt and output tokens; None where only lengths matter, as in most simulations. reply: the
    output that the simulator gives it. priority: for policies that look at it, smaller is more urgent.
    """

    id: int | str
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
        """Arrival and token times, from which measure.timeline takes TTFT, ITL, TPOT and the end-to-end latency."""
        return Timeline(self.arrival, self.times)

    def fresh(self) -> Sequence:
        """The same request, not served yet: for the next run of a workload."""
        ids = None if self.ids is None else self.ids[: self.prompt_length]
        return Sequence(
            self.id, self.arrival, self.prompt_length, self.output_length, self.max_tokens, ids, self.reply,
            self.priority,
        )  # fmt: skip
