"""Named claims and how each is measured: a function a claim, registered with its bar and baseline."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lessons_lib.measure.clock import Ratio
from lessons_lib.models.hub import pick

_, DTYPE = pick("cpu", "auto")


@dataclass(frozen=True)
class Run:
    """How thoroughly to measure: pairs of runs a comparison, and new tokens a generation.

    questions: a file in Spec-Bench's format whose questions are asked instead of our own.
    """

    quick: bool
    questions: Path | None = None

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 7

    @property
    def tokens(self) -> int:
        return 32 if self.quick else 128


@dataclass(frozen=True)
class Measured:
    """A paired ratio (None: not measured), and what else is worth keeping: a note for the table, facts for the file."""

    ratio: Ratio | None
    note: str = ""
    facts: dict | None = None


@dataclass(frozen=True)
class Claim:
    """A named figure that is boasted of: its bar, what it is compared with, and the function that measures it.

    asks: whose questions it asks, "" where it asks none; another file's may be asked instead. dtype: what the model
    computes in, "" where there is none.
    """

    name: str
    bar: str
    baseline: str
    measure: Callable[[Run], Measured]
    asks: str = ""
    unit: str = "x"
    dtype: str = DTYPE

    def compared_with(self, run: Run) -> str:
        """The baseline, and whose questions this run asks."""
        asked = run.questions.name if run.questions else self.asks
        return f"{self.baseline}; questions: {asked}" if self.asks else self.baseline


class NotMeasured(Exception):
    """What this machine lacks for a claim: a sentence that says what to do."""


CLAIMS: dict[str, Claim] = {}


def claim(name: str, bar: str, baseline: str, asks: str = "", unit: str = "x", dtype: str = DTYPE):
    """Register the decorated function as what measures `name`."""

    def register(measure: Callable[[Run], Measured]):
        CLAIMS[name] = Claim(name, bar, baseline, measure, asks, unit, dtype)
        return measure

    return register


def off_by(ratio: Ratio) -> Ratio:
    """How far a ratio is from 1; the interval from the ends of its own, down to 0 where that holds 1."""
    near, far = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
    return Ratio(abs(ratio.value - 1), near if ratio.differs else 0.0, far, ratio.a, ratio.b)
