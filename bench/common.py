"""What all benches share: claims by name, what a run and a measurement are, the model, ratios with intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from lessons_lib import load
from lessons_lib.decoding.probing import width_times
from lessons_lib.measure.clock import RESAMPLES, Ratio, Samples
from lessons_lib.measure.cost import width_curve
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


@cache
def model(dtype: str = DTYPE):
    """smollm2-135m on the CPU in this format. ModelUnavailable if it cannot be fetched."""
    return load("smollm2-135m", device="cpu", dtype=dtype)


@cache
def in_format(weights: str | None):
    """Its readable decoder with weights in this format, eager; None: DTYPE's own. "int8" is calibrated."""
    return model().target(weights=weights, windows=model().calibration_windows())


@cache
def eager(dtype: str = DTYPE):
    """Its readable decoder, nothing compiled."""
    return model(dtype).target()


def prompt_of(tokens: int) -> list[int]:
    """A prompt of so many ids, for what does not depend on the text."""
    return [10 + i % 50 for i in range(tokens)]


def costs_of(target, widths: Sequence[int], repeats: int, cached: int = 300) -> dict[int, float]:
    """{w: v(w)}: forwards of w tokens behind `cached` ones, over one of one token."""
    return width_curve(width_times(target, prompt_of(cached), widths, "cpu", repeats))


def listed(values: dict) -> str:
    """{"a": 1.5, "b": 2} -> "a 1.50, b 2.00"."""
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def rate_ratio(a: Sequence[tuple], b: Sequence[tuple]) -> Ratio:
    """a, b: for each question (tokens, cost) -> sum of tokens over sum of costs, b's over a's.

    The 95 % interval comes from drawing the questions again, so it says how much the choice of questions matters.
    The samples are each question's cost per token. ValueError without questions.
    """
    if not len(a) or len(a) != len(b):
        raise ValueError(f"both methods need the same questions, at least one, not {len(a)} and {len(b)}")
    both = np.array([a, b], dtype=float)  # (2, questions, 2)

    def ratio(drawn):
        tokens, cost = np.moveaxis(both[:, drawn].sum(-2), -1, 0)
        slow, fast = tokens / cost
        return fast / slow

    low, high = np.percentile(ratio(drawings(len(a))), [2.5, 97.5])
    samples = [Samples(tuple((cost / tokens).tolist())) for tokens, cost in np.moveaxis(both, -1, 1)]
    return Ratio(float(ratio(np.arange(len(a)))), float(low), float(high), *samples)


def mean_rate(kinds: Sequence[Sequence[tuple]]) -> Ratio:
    """kinds: for each kind of text its texts' (tokens, forwards) -> the mean over kinds of tokens per forward.

    Every kind counts the same, however many texts it has. The interval is that of texts drawn again within their
    kinds; the samples are forwards per token, first plain decoding's. ValueError for a kind without texts.
    """
    if not kinds or not all(map(len, kinds)):
        raise ValueError("every kind needs a text to count")

    def mean(drawn):
        sums = [np.array(texts, dtype=float)[those].sum(-2) for texts, those in zip(kinds, drawn, strict=True)]
        return np.mean([found[..., 0] / found[..., 1] for found in sums], axis=0)

    again = mean([drawings(len(texts), kind) for kind, texts in enumerate(kinds)])
    low, high = np.percentile(again, [2.5, 97.5])
    taken = [passes / tokens for texts in kinds for tokens, passes in texts]
    value = float(mean([np.arange(len(texts)) for texts in kinds]))
    return Ratio(value, float(low), float(high), Samples((1.0,) * len(taken)), Samples(tuple(taken)))


def drawings(count: int, seed: int = 0) -> np.ndarray:
    """(RESAMPLES, count) numbers below `count`: what a bootstrap draws again."""
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
