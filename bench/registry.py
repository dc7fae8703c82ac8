"""Named claims and how each is measured: a function a claim, registered with its bar and baseline."""

from collections.abc import Callable
from dataclasses import dataclass

from lessons_lib.measure.clock import Ratio


@dataclass(frozen=True)
class Run:
    """How thoroughly to measure: pairs of runs a comparison, and new tokens a generation."""

    quick: bool

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 7

    @property
    def tokens(self) -> int:
        return 32 if self.quick else 128


@dataclass(frozen=True)
class Measured:
    """A paired ratio and what else is worth keeping: a note for the table, raw facts for the JSON file."""

    ratio: Ratio
    note: str = ""
    facts: dict | None = None


@dataclass(frozen=True)
class Claim:
    name: str
    bar: str
    baseline: str
    measure: Callable[[Run], Measured]


CLAIMS: dict[str, Claim] = {}


def claim(name: str, bar: str, baseline: str):
    """Register the decorated function as what measures `name`."""

    def register(measure: Callable[[Run], Measured]):
        CLAIMS[name] = Claim(name, bar, baseline, measure)
        return measure

    return register
