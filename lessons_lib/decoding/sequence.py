"""A sequence (lessons 01, 05): the state of one text from its prompt to its last generated token.

`generate` makes one sequence and repeats the decoding step on it. The engine makes many, and its scheduler decides
which of them run in each step. The simulator schedules them as well, but needs only their lengths. Imports no torch.
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
    """State of a sequence. A preempted sequence is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass
class StoppingCriteria:
    """Conditions that end a sequence before its maximal length.

    min_new_tokens: EOS tokens up to this number of new tokens are ignored. eos: the EOS tokens. stop: detects stop
    texts in the generated text; None without stop texts.
    """

    min_new_tokens: int = 0
    eos: frozenset[int] = frozenset()
    stop: StoppedText | None = None

    def reason(self, token: int, count: int) -> str | None:
        """Finish reason at this token, the `count`-th new one: "eos", "stop" or None. Call it once for every token."""
        if self.stop:
            self.stop.add(token)
        if token in self.eos and count > self.min_new_tokens:
            return "eos"
        return "stop" if self.stop and self.stop.ended else None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """A prompt, its output so far, and the state that the next step needs (vLLM: Request).

    prompt_length: number of prompt tokens, by default len(ids). output_length: number of output tokens it will get; in
    a simulation only the simulator and `reserve="oracle"` know it. max_tokens: the limit that `reserve="max"` uses
    (None: output_length). ids: prompt and output tokens; None in simulations that need only lengths. reply: output
    tokens that the simulator assigns. Times are in seconds on the clock of the run.
    """

    id: int | str = 0
    arrival: float = 0.0
    prompt_length: int = 0
    output_length: int = 1
    max_tokens: int | None = None
    ids: list[int] | None = None
    reply: list[int] | None = None

    num_output_tokens: int = 0
    num_computed_tokens: int = 0  # tokens whose keys and values are cached
    finish_reason: str | None = None  # "eos", "stop" or "length"
    status: Status = Status.WAITING
    error: str | None = None  # reason for a failure or rejection

    # Decoding: set by `generate.ready`.
    cache: Cache | None = None  # when served: None from admission to the next step, for which the engine makes one
    proposer: Proposer | None = None
    acceptance: Acceptance | None = None
    generator: torch.Generator | None = None
    stopping: StoppingCriteria | None = None
    context: int | None = None  # context length of the target
    on_tokens: Callable[[list[int]], None] | None = None  # called with the new tokens of every step
    tree: DraftTree | None = None  # draft of the current step; None if its pass ends before the last committed token
    stats: list[StepStats] = field(default_factory=list)  # one per forward pass

    # Serving: set by the scheduler and its block pool.
    num_scheduled_tokens: int | None = None  # limit of this step, draft tokens included; None: no limit
    block_table: list[int] = field(default_factory=list)  # its KV cache blocks, in order
    block_hashes: list[bytes] = field(default_factory=list)  # hashes of its full blocks, for the prefix cache
    turn: int = 0  # the scheduler's tie-break between sequences with the same arrival time
    admitted: float | None = None  # time it first ran
    finished: float | None = None  # time it left; under static batching, together with its batch
    times: list[float] = field(default_factory=list)  # time of every output token
    reused: int = 0  # prompt tokens found in the prefix cache when it was first admitted
    preemptions: int = 0

    def __post_init__(self) -> None:
        if self.ids is not None and self.prompt_length not in (0, len(self.ids)):
            raise ValueError(f"Sequence {self.id}: prompt_length {self.prompt_length}, but {len(self.ids)} ids.")
        self.prompt_length = self.prompt_length or len(self.ids or ())
        self.max_tokens = self.output_length if self.max_tokens is None else self.max_tokens
        if self.prompt_length < 1 or self.output_length < 1 or self.max_tokens < 1:
            raise ValueError(f"Sequence {self.id} needs at least one prompt token and one output token.")
        if not 0 <= self.arrival < math.inf:
            raise ValueError(f"Sequence {self.id} arrives at {self.arrival} s; arrivals start at 0 and are finite.")
        if self.reply is not None and len(self.reply) < self.length:
            raise ValueError(f"Sequence {self.id}: a reply of {len(self.reply)} tokens, but {self.length} are to come.")

    @property
    def length(self) -> int:
        """Maximal number of output tokens; stopping criteria may end the sequence earlier."""
        return min(self.output_length, self.max_tokens)

    @property
    def num_tokens(self) -> int:
        """Number of tokens so far, prompt and output."""
        return self.prompt_length + self.num_output_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Number of tokens not yet in the cache: the rest of the prompt during prefill, 1 during decoding."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def output_ids(self) -> list[int]:
        """The tokens of the output so far."""
        return self.ids[self.prompt_length :]

    @property
    def uncomputed_ids(self) -> list[int]:
        """The uncomputed tokens of this step, without the draft: all of them, or as many as are scheduled."""
        start = self.num_computed_tokens
        return self.ids[start : None if self.num_scheduled_tokens is None else start + self.num_scheduled_tokens]

    @property
    def prefilling(self) -> bool:
        """Whether the next forward pass computes the prompt, or recomputes the sequence after a preemption."""
        return self.num_output_tokens == 0 or self.num_uncomputed_tokens > 1

    def commit(self, fed: int, tokens: list[int]) -> None:
        """Update the state after a pass over `fed` tokens. tokens: the new ones; none from a part of a prompt.

        With new tokens, all but the newest one count as computed: rejected draft tokens are no longer in the cache.
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
        """Reset the state after a preemption: its blocks are freed, and what it finds of them in the prefix
        cache when it is admitted again is not computed again."""
        self.status, self.num_computed_tokens = Status.WAITING, 0
        self.preemptions += 1

    def timeline(self) -> Timeline:
        """Arrival and token times, from which measure.clock derives TTFT, ITL, TPOT and the end-to-end latency."""
        return Timeline(self.arrival, self.times)

    def fresh(self) -> Sequence:
        """A copy that has not been served yet, for the next run of a workload. It has no decoding settings."""
        ids = None if self.ids is None else self.ids[: self.prompt_length]
        return Sequence(self.id, self.arrival, self.prompt_length, self.output_length, self.max_tokens, ids, self.reply)
