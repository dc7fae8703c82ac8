"""The simulator (lesson 05): the serving loop with a cost model for a GPU and a number for a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lessons_lib.serving.cost_model import Cost, load_of
from lessons_lib.serving.request import Log, Plan, Request
from lessons_lib.serving.scheduler import Scheduler, serve

NONE, ANY = (), (0,)  # nothing, and a token whose id nobody asked for


@dataclass
class Simulator:
    """A backend whose clock advances by what the cost model says of each forward.

    accepted(request, guesses): how many of the tokens fed beyond the first are right (Scheduler.guesses); None: none.
    padded: finished requests that a static batch holds cost a row each, as where sequences are padded to a rectangle;
    an engine that packs its rows only wastes their slots.
    """

    cost: Cost
    accepted: Callable[[Request, int], int] | None = None
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

    def run(self, plan: Plan) -> list[Sequence[int]]:
        """Let the forward's seconds pass -> the new tokens of each row."""
        self.time += self.cost.seconds(load_of(plan, self.padded))
        return [self._tokens(request, fed) for request, fed in plan.rows]

    def _tokens(self, request: Request, fed: int) -> Sequence[int]:
        """What the forward emits: nothing before the last known token is fed, then one token and accepted guesses."""
        guesses = fed - request.lacking
        if guesses < 0:
            return NONE
        if not guesses and request.reply is None:
            return ANY
        count = 1 + (self.accepted(request, guesses) if guesses and self.accepted else 0)
        count = min(count, request.length - request.emitted)
        return ANY * count if request.reply is None else request.reply[request.emitted : request.emitted + count]


def simulate(
    requests: Sequence[Request],
    scheduler: Scheduler,
    cost: Cost,
    accepted: Callable[[Request, int], int] | None = None,
    padded: bool = True,
) -> Log:
    """Serve fresh copies of the requests on the virtual clock (seconds) -> the event log, the copies in it.

    The scheduler must be fresh as well; accepted and padded: see Simulator. RuntimeError as `loop.serve` has it, and,
    with nothing changed, while another run uses the scheduler.
    """
    with scheduler.exclusive():
        return serve([request.fresh() for request in requests], scheduler, Simulator(cost, accepted, padded))
