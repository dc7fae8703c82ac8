"""Shared by all benches: the registry of claims, runs and measurements, the model, ratios with intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from lessons_lib import load
from lessons_lib.decoding.probing import width_times
from lessons_lib.measure.clock import Ratio, Samples, resamples
from lessons_lib.measure.cost import width_curve
from lessons_lib.models.device import pick

_, DTYPE = pick("cpu", "auto")


@dataclass(frozen=True)
class Run:
    """How thoroughly to measure: pairs of runs per comparison, and new tokens per generation.

    questions: a file in Spec-Bench's format to use instead of our own questions.
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
    """Result of a claim: a paired ratio (None: not measured), a note for the table, and facts for the file."""

    ratio: Ratio | None
    note: str = ""
    facts: dict | None = None


@dataclass(frozen=True)
class Claim:
    """A named claim: its bar, its baseline, and the function that measures it.

    says: the result as a sentence for RESULTS.md, with {times} (2.21 times), {percent} (7.2%) or {number} in it.
    missed: why it is below its bar. asks: the set of questions it uses, "" if it uses none; another file's may be used
    instead. dtype: dtype of the model, "" if there is none.
    """

    name: str
    bar: str
    baseline: str
    measure: Callable[[Run], Measured]
    says: str
    missed: str = ""
    asks: str = ""
    unit: str = "x"
    dtype: str = DTYPE

    def compared_with(self, run: Run) -> str:
        """The baseline, and the set of questions of this run."""
        asked = run.questions.name if run.questions else self.asks
        return f"{self.baseline}; questions: {asked}" if self.asks else self.baseline


class NotMeasured(Exception):
    """Why a claim cannot be measured on this machine or with these questions; the message says what to do."""


CLAIMS: dict[str, Claim] = {}


def claim(name: str, bar: str, baseline: str, **settings: str):
    """Register the decorated function as the measurement of claim `name`. settings: as in Claim."""

    def register(measure: Callable[[Run], Measured]):
        CLAIMS[name] = Claim(name, bar, baseline, measure, **settings)
        return measure

    return register


def fingerprint(network: torch.nn.Module) -> str:
    """The first 16 digits of the SHA-256 of a network's tensors: which weights were measured."""
    digest = sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def off_by(ratio: Ratio) -> Ratio:
    """Distance of a ratio from 1. The interval follows from the ratio's own; it begins at 0 if that contains 1."""
    near, far = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
    return Ratio(abs(ratio.value - 1), near if ratio.differs else 0.0, far, ratio.a, ratio.b, runs=ratio.runs)


@cache
def model(dtype: str = DTYPE):
    """smollm2-135m on the CPU in this dtype."""
    return load("smollm2-135m", device="cpu", dtype=dtype)


@cache
def in_format(weights: str | None):
    """Its readable decoder with weights in this format, eager; None: unquantized. "W8A8" is calibrated."""
    return model().target(weights=weights, windows=model().calibration_windows())


@cache
def eager(dtype: str = DTYPE):
    """Its readable decoder, eager."""
    return model(dtype).target()


def prompt_of(tokens: int) -> list[int]:
    """A prompt of this many ids, for measurements that do not depend on the text."""
    return [10 + i % 50 for i in range(tokens)]


def costs_of(target, widths: Sequence[int], repeats: int, cached: int = 300) -> dict[int, float]:
    """Width curve {w: v(w)}: passes over w tokens after `cached` ones, relative to a one-token pass."""
    return width_curve(width_times(target, prompt_of(cached), widths, "cpu", repeats))


def listed(values: dict) -> str:
    """Format a dictionary: {"a": 1.5, "b": 2} -> "a 1.50, b 2.00"."""
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def mean_rate(kinds: Sequence[Sequence[tuple]]) -> Ratio:
    """Mean over kinds of text of tokens per forward pass. kinds: for each kind, (tokens, forward passes) of its texts.

    Every kind has the same weight, however many texts it has. The interval comes from resampling texts within their
    kinds; the samples are forward passes per token, those of plain decoding first.
    """

    def mean(sampled):
        sums = [np.array(texts, dtype=float)[those].sum(-2) for texts, those in zip(kinds, sampled, strict=True)]
        return np.mean([found[..., 0] / found[..., 1] for found in sums], axis=0)

    again = mean([resamples(len(texts), kind) for kind, texts in enumerate(kinds)])
    low, high = np.percentile(again, [2.5, 97.5])
    taken = [passes / tokens for texts in kinds for tokens, passes in texts]
    value = float(mean([np.arange(len(texts)) for texts in kinds]))
    return Ratio(value, float(low), float(high), Samples((1.0,) * len(taken)), Samples(tuple(taken)))
