"""The simulator (lesson 05): the serving loop with a cost model in place of a GPU, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.cost import BatchCost, Load
from lessons_lib.serving.loop import Log, serve
from lessons_lib.serving.scheduler import Plan, Scheduler

NONE, ANY = [], [0]  # no token, and one whose id does not matter


@dataclass
class Simulator:
    """A backend whose clock advances by the predicted time of each forward pass.

    accepted(sequence, drafts): number of accepted tokens among `drafts` draft tokens; None: none is accepted.
    padded: whether a finished request that a static batch still holds costs a row in every pass, as in a rectangular
    batch. If not, sequences are packed, it only occupies its slot, and a step in which nobody runs takes no time.
    """

    cost: BatchCost
    accepted: Callable[[Sequence, int], int] | None = None
    padded: bool = True
    time: float = field(default=0.0, init=False)

    def now(self) -> float:
        """Virtual time in seconds."""
        return self.time

    def wait(self, until: float) -> None:
        """Advance the clock to `until`, never back."""
        self.time = max(self.time, until)

    def run(self, plan: Plan) -> list[list[int]]:
        """Advance the clock by the time of the step and commit its tokens -> the new tokens of each row."""
        # as in the engine, no draft goes beyond the end of the text, whose last token is never fed
        for row in plan.rows:
            if row.tokens > 1:
                row.tokens = min(row.tokens, row.seq.prompt_length + row.seq.length - 1 - row.cached)
        if plan.rows or self.padded:
            self.time += self.cost.seconds(load_of(plan, self.padded))
        committed = [self._tokens(row.seq, row.tokens) for row in plan.rows]
        for row, tokens in zip(plan.rows, committed, strict=True):
            row.seq.commit(row.tokens, tokens)
        return committed

    def _tokens(self, seq: Sequence, fed: int) -> list[int]:
        """New tokens of a row: none for a part of a prompt, else one token and the accepted draft tokens."""
        drafts = fed - seq.num_uncomputed_tokens
        if drafts < 0:
            return NONE
        if not drafts and seq.reply is None:
            return ANY
        count = 1 + (self.accepted(seq, drafts) if drafts and self.accepted else 0)
        count = min(count, seq.length - seq.num_output_tokens)
        return ANY * count if seq.reply is None else seq.reply[seq.num_output_tokens : seq.num_output_tokens + count]


def simulate(
    requests: list[Sequence],
    scheduler: Scheduler,
    cost: BatchCost,
    accepted: Callable[[Sequence, int], int] | None = None,
    padded: bool = True,
) -> Log:
    """Serve copies of the requests in virtual time (seconds) -> the event log, which holds the copies.

    scheduler: a new one for each simulation. accepted, padded: see Simulator.
    """
    with scheduler.exclusive():
        scheduler.pool.clear()
        scheduler.pool.owner_mark = None  # an engine must not find the prefixes of a simulation
        return serve([request.fresh() for request in requests], scheduler, Simulator(cost, accepted, padded))


def load_of(plan: Plan, padded: bool = True) -> Load:
    """The load of a plan. padded: count finished requests that a static batch holds as rows."""
    rows = [(row.tokens, row.prefilling, row.cached) for row in plan.rows]
    idle = [(1, False, seq.num_tokens - 1) for seq in plan.idle] if padded else []
    return _total(rows + idle)


def steps(log: Log) -> list[tuple[Load, float]]:
    """(load, seconds) of every iteration in which a sequence ran: the input of `cost.fit`. Idle slots do not count."""
    ran = [i for i in log.iterations if i.shares]
    return [(_total((s.fed, s.prefill, s.cached) for s in i.shares), i.end - i.start) for i in ran]


def _total(rows: Iterable[tuple[int, bool, int]]) -> Load:
    """The load of rows, each (tokens fed, whether it is prefill, tokens cached before)."""
    tokens = pairs = prompts = decode = kv = 0
    for fed, prefill, cached in rows:
        if prefill:
            prompts += 1
            tokens += fed
            pairs += fed * cached + fed * (fed + 1) // 2
        else:
            decode += fed
            kv += cached + fed
    return Load(tokens, pairs, prompts, decode, kv)
