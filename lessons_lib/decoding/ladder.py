"""The ladder (lesson 11): ways to decode one model, each priced before anything is timed.

A rung changes one thing of the rung below it. Its step has a price, made of bytes, a rate, and what wider steps cost;
what a text takes follows from the price and the text's trace, which is counted and asks no clock. So a rung is
predicted by what was learned about its parts: it may be timed afterwards, and be wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.decoding.generate import Step, after_prefill
from lessons_lib.measure.speculation import WidthCurve, width_cost

TOLERATED = 0.01  # of perplexity: a rung that gives away more is shown but does not count


@dataclass(frozen=True)
class Price:
    """What one decode step is expected to take.

    weights: bytes of weights that a step reads, whatever its width. entry: bytes of one cached token's keys and
    values. slots: entries that every step goes over (None: those that are cached). rate: bytes/s at which a one-row
    step of this kind reads. launch: seconds that its forward takes beside that. v: its width curve, of the whole
    forward. around: seconds between two forwards: choosing, committing, guesses that cost the same in every step.
    guess: seconds of one call of a draft.
    """

    weights: float
    entry: float
    rate: float
    slots: int | None = None
    launch: float = 0.0
    v: WidthCurve = None
    around: float = 0.0
    guess: float = 0.0

    def moved(self, cached: int) -> float:
        """Bytes that a one-row step behind `cached` tokens reads."""
        return self.weights + self.entry * (cached if self.slots is None else self.slots)

    def forward(self, cached: int, rows: int = 1) -> float:
        """Seconds of a forward of so many rows.

        ZeroDivisionError for a rate of 0, ValueError for a v without widths.
        """
        return (self.moved(cached) / self.rate + self.launch) * width_cost(self.v)(rows)

    def decoding(self, trace: Sequence[Step]) -> float:
        """Seconds of all steps of a text but the prefill. Errors as `forward`."""
        steps = after_prefill(trace)
        forwards = sum(self.forward(step.length_before, step.forwarded) for step in steps)
        return forwards + sum(self.around + self.guess * step.draft_calls for step in steps)


@dataclass(frozen=True)
class Rung:
    """One way to decode. below: the rung that it changes (None: the first)."""

    name: str
    below: str | None
    price: Price

    def speed(self, traces: Sequence[Sequence[Step]]) -> float:
        """Tokens per second of decoding alone that are expected of texts with these traces.

        ZeroDivisionError if no step of theirs decodes.
        """
        tokens = sum(step.committed for trace in traces for step in after_prefill(trace))
        return tokens / sum(self.price.decoding(trace) for trace in traces)


def standing(rungs: Sequence[Rung]) -> None:
    """ValueError for a name that comes twice, and for a rung whose lower one does not stand before it."""
    seen: set[str] = set()
    for rung in rungs:
        if rung.name in seen:
            raise ValueError(f"two rungs are called {rung.name!r}; give each a name of its own")
        if rung.below is not None and rung.below not in seen:
            raise ValueError(f"{rung.name!r} stands on {rung.below!r}, which is not below it; put that rung first")
        seen.add(rung.name)


def way_to(rungs: Sequence[Rung], top: str) -> list[Rung]:
    """The rungs from the first one up to `top`. ValueError if there is none of that name, KeyError for a gap."""
    named, way = {rung.name: rung for rung in rungs}, []
    if top not in named:
        raise ValueError(f"there is no rung {top!r}; choose one of: {', '.join(named)}")
    while top is not None:
        way.append(named[top])
        top = named[top].below
    return way[::-1]


def step_gains(rungs: Sequence[Rung], speeds: Mapping[str, float]) -> dict[str, float]:
    """Each rung's speed over that of the rung below it; the first one's is 1. Along a way they multiply to its whole.

    Rungs without a speed were not measured and are left out, and so are those that stand on one of them.
    """
    known = [rung for rung in rungs if rung.name in speeds and (rung.below is None or rung.below in speeds)]
    return {rung.name: speeds[rung.name] / speeds[rung.below] if rung.below else 1.0 for rung in known}


def counting(perplexities: Mapping[str, float], reference: float) -> set[str]:
    """Names of the rungs whose perplexity is at most TOLERATED above the reference's, relative."""
    return {name for name, value in perplexities.items() if value <= reference * (1 + TOLERATED)}


def best(speeds: Mapping[str, float], allowed: Collection[str]) -> str:
    """The fastest rung of those allowed. ValueError if none of them was measured."""
    if not (known := [name for name in speeds if name in allowed]):
        raise ValueError("none of the rungs that count was measured; measure one of: " + ", ".join(sorted(allowed)))
    return max(known, key=speeds.__getitem__)
