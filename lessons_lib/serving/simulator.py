"""The simulator (lesson 05): the serving loop with a cost model for a GPU and a number for a clock."""

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
    """A backend whose clock advances by what the cost model says of each forward pass.

    accepted(sequence, drafts): how many of the draft tokens fed are accepted (Scheduler.num_speculative_tokens); None:
    none.
    padded: finished requests that a static batch holds cost a row each, as where sequences are padded to a rectangle;
    an engine that packs its rows only wastes their slots.
    """

    cost: BatchCost
    accepted: Callable[[Sequence, int], int] | None = None
    padded: bool = True
    time: float = field(default=0.0, init=False)
    owner_mark: object | None = field(default=None, init=False)  # see pool.Memory

    @property
    def memory(self) -> Simulator:
        """Itself: each simulation is a memory of its own, which holds no keys and values."""
        return self

    def now(self) -> float:
        """Virtual seconds so far."""
        return self.time

    def wait(self, until: float) -> None:
        """Go on to that second, never back."""
        self.time = max(self.time, until)

    def run(self, plan: Plan) -> list[list[int]]:
        """Let the step's seconds pass and commit its tokens -> the new tokens of each row."""
        self.time += self.cost.seconds(load_of(plan, self.padded))
        committed = [self._tokens(seq, fed) for seq, fed in plan.rows]
        for (seq, fed), tokens in zip(plan.rows, committed, strict=True):
            seq.commit(fed, tokens)
        return committed

    def _tokens(self, seq: Sequence, fed: int) -> list[int]:
        """What a row gives: nothing before its last token is fed, then one token and the accepted draft tokens."""
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
    """Serve fresh copies of the requests on the virtual clock (seconds) -> the event log, the copies in it.

    The scheduler must be fresh as well; accepted and padded: see Simulator. RuntimeError as `loop.serve` has it, and,
    with nothing changed, while another run uses the scheduler.
    """
    with scheduler.exclusive():
        return serve([request.fresh() for request in requests], scheduler, Simulator(cost, accepted, padded))


def load_of(plan: Plan, padded: bool = True) -> Load:
    """The load of a plan, before it has run. padded: finished requests that a static batch holds are rows as well."""
    rows = [(fed, seq.prefilling, seq.num_computed_tokens) for seq, fed in plan.rows]
    idle = [(1, False, seq.num_tokens - 1) for seq in plan.idle] if padded else []
    return _total(rows + idle)


def steps(log: Log) -> list[tuple[Load, float]]:
    """(load, seconds) of every iteration of a run that had rows: what `cost.fit` takes. Held rows do not count."""
    ran = [i for i in log.iterations if i.shares]
    return [(_total((s.fed, s.prefill, s.cached) for s in i.shares), i.end - i.start) for i in ran]


def _total(rows: Iterable[tuple[int, bool, int]]) -> Load:
    """The load of rows (tokens fed, whether of a prompt, tokens cached before)."""
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
