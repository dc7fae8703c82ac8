"""Clocks: time a callable, compare two in alternation (lesson 00), record each token's arrival (lessons 01, 05).

A time is the median of repeated runs, shown with its spread. A comparison alternates A and B in one process and quotes
the ratio. With LESSONS_LIB_QUICK=1 in the environment everything is timed once after one warm-up run. This is for tests
that execute lessons, where counts matter and times do not.

A request is submitted at t_0; its output tokens are readable on the host at t_1..t_n.
TTFT = t_1 - t_0, ITL_i = t_i - t_{i-1}, TPOT = (t_n - t_1)/(n - 1), E2E = t_n - t_0 = TTFT + (n - 1)·TPOT.
Tools define these differently, so print the formula. Source: Zhong et al. 2024 (DistServe: goodput, capacity).
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

QUICK = "LESSONS_LIB_QUICK"
STEADY = 0.05  # warm-up ends when two runs in a row differ by less
NOISY = 0.10  # interquartile range / median above which samples are noisy
FEWEST_PAIRS = 6  # fewer have no 95% interval
RESAMPLES = 2000  # bootstrap resamples (Efron 1979)


@dataclass(frozen=True)
class Samples:
    """Seconds of repeated runs, at least one."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return self._quantile(50)

    @property
    def q1(self) -> float:
        """Lower quartile in seconds."""
        return self._quantile(25)

    @property
    def q3(self) -> float:
        """Upper quartile in seconds."""
        return self._quantile(75)

    @property
    def min(self) -> float:
        """Seconds of the fastest run."""
        return min(self.times)

    @property
    def max(self) -> float:
        """Seconds of the slowest run."""
        return max(self.times)

    @property
    def noisy(self) -> bool:
        """True if the interquartile range is more than 10% of the median."""
        return self.q3 - self.q1 > NOISY * self.median

    def __str__(self) -> str:
        text = f"{seconds_text(self.median)} (min {seconds_text(self.min)}, quartiles {seconds_text(self.q1)}"
        return f"{text} to {seconds_text(self.q3)}, n={len(self.times)}{', noisy' if self.noisy else ''})"

    def _quantile(self, percent: float) -> float:
        return float(np.percentile(self.times, percent))


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval; with `runs`, the lowest and the highest of so many runs, too few for 95%."""

    value: float
    low: float
    high: float
    runs: int | None = field(default=None, kw_only=True)

    def words(self, number: Callable[[float], str] = "{:.2f}".format) -> str:
        """In a sentence: "95%: 1.80 to 2.70", "3 runs: 1.01 to 1.16", "one run"."""
        return self._kind if self.runs == 1 else f"{self._kind}: {number(self.low)} to {number(self.high)}"

    def cell(self, number: Callable[[float], str] = "{:.2f}".format) -> str:
        """In a table: "1.80 to 2.70", "1.01 to 1.16, 3 runs"."""
        return f"{number(self.low)} to {number(self.high)}" + (f", {self._kind}" if self.runs else "")

    @property
    def _kind(self) -> str:
        return "95%" if self.runs is None else "one run" if self.runs == 1 else f"{self.runs} runs"

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.words()})"


@dataclass(frozen=True)
class Ratio(Interval):
    """A ratio a/b with its interval and the samples behind it. For seconds, 2 means that b is twice as fast."""

    a: Samples
    b: Samples

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1. If not, no difference was seen.

        A single run cannot tell. Without any difference, three pairs exclude 1 in a quarter of cases.
        """
        return not (self.low <= 1 <= self.high or self.runs == 1)

    @property
    def samples(self) -> tuple[float, ...]:
        """Ratio a/b of each pair, in the order of the runs."""
        return tuple(a / b for a, b in zip(self.a.times, self.b.times, strict=True))

    def __str__(self) -> str:
        return super().__str__() + ("" if self.differs or self.runs == 1 else ": no difference seen")

    @classmethod
    def of(cls, a: Samples, b: Samples) -> Ratio:
        """Median of the paired ratios: the i-th sample of a over the i-th of b, as many of each, at least one."""
        pairs = list(zip(a.times, b.times, strict=True))
        return cls(*median_ratio(pairs), a, b, runs=len(pairs) if len(pairs) < FEWEST_PAIRS else None)


def sync(device: Any) -> None:
    """Wait until the device has finished all its work. Returns at once on a CPU."""
    if str(device).startswith("cpu"):
        return
    import torch

    # torch.accelerator of early versions does not wait for Apple's GPU
    torch.mps.synchronize() if "mps" in str(device) else torch.accelerator.synchronize(device)


def timed(fn: Callable[[], Any], device: Any = "cpu", repeats: int = 5, warmup: int | str = "auto") -> Samples:
    """Time `repeats` runs of fn after warm-up, with garbage collection off and the device synchronized around each run.

    warmup: a number of runs, or "auto": until two consecutive runs differ by less than 5%, at least 2 and at most 10.
    """
    return in_turn({"fn": fn}, device, repeats, warmup)["fn"]


def compare(
    a: Callable[[], Any],
    b: Callable[[], Any],
    device: Any = "cpu",
    repeats: int = 5,
    warmup: int | str = "auto",
) -> Ratio:
    """Time a and b in alternation (ABAB...) after warming up both; returns the ratio of their times a/b."""
    found = in_turn({"a": a, "b": b}, device, repeats, warmup)
    return Ratio.of(found["a"], found["b"])


def in_turn(
    fns: Mapping[Any, Callable[[], Any]],
    device: Any = "cpu",
    repeats: int = 5,
    warmup: int | str = "auto",
) -> dict[Any, Samples]:
    """Time several functions in alternation (ABCABC...), so that a slow moment affects all of them.

    Each function is warmed up as in `timed`. fns: functions under any keys, such as (method, length); the samples are
    returned under the same keys.
    """
    if os.environ.get(QUICK) == "1":
        warmup = 1 if warmup == "auto" else min(int(warmup), 1)
    with no_gc():
        found = {key: _block(fn, device) for key, fn in fns.items()}
        for run in found.values():
            _warm_up(run, warmup)
        rounds = [{key: run() for key, run in found.items()} for _ in range(runs(repeats))]
    return {key: Samples(tuple(times[key] for times in rounds)) for key in found}


def runs(repeats: int) -> int:
    """Number of timed runs: `repeats`, or at most one where LESSONS_LIB_QUICK=1 is set."""
    return min(repeats, 1) if os.environ.get(QUICK) == "1" else repeats


def keeping(found: dict, key: Any, call: Callable[[], Any]) -> Callable[[], None]:
    """Wrap `call` for timing: each run stores its result in found[key]."""

    def run() -> None:
        found[key] = call()

    return run


def median_ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Median of the ratios a/b over pairs (a, b) with its 95% interval: (value, low, high).

    The interval runs from the k-th lowest to the k-th highest ratio. Each ratio lies below the true median with
    probability 1/2, so the interval misses it with probability 2 P[Bin(n, 1/2) < k]; k is the largest with at most 5%.
    With fewer than FEWEST_PAIRS even the lowest and the highest miss it more often. Medians are taken of logarithms, so
    that swapping a and b inverts the result; all values must be positive.
    """
    if not pairs:
        raise ValueError("No pairs to compare; measure at least one.")
    logs = sorted(math.log(a / b) for a, b in pairs)
    n, outside, tail = len(logs), 0, 1 + len(logs)  # tail: of 2^n cases, those with fewer than k = outside + 2
    while 40 * tail <= 2**n:
        outside += 1
        tail += math.comb(n, outside + 1)
    return math.exp(median(logs)), math.exp(logs[outside]), math.exp(logs[n - 1 - outside])


def rate_ratio(a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]]) -> Ratio:
    """Ratio of rates b/a, where a rate is the sum of tokens over the sum of costs. a, b: (tokens, cost) per text.

    The 95% interval comes from resampling the texts, so it shows how much their choice matters. With fewer than
    FEWEST_PAIRS it is the lowest and the highest ratio of a text instead. The samples are each text's cost per token.
    """
    if not len(a) or len(a) != len(b):
        raise ValueError(f"both methods need the same texts, at least one, not {len(a)} and {len(b)}")
    both = np.array([a, b], dtype=float)  # (2, questions, 2)

    def ratio(sampled):
        tokens, cost = np.moveaxis(both[:, sampled].sum(-2), -1, 0)
        slow, fast = tokens / cost
        return fast / slow

    samples = [Samples(tuple((cost / tokens).tolist())) for tokens, cost in np.moveaxis(both, -1, 1)]
    if len(a) >= FEWEST_PAIRS:
        return Ratio(*resampled(ratio, len(a)), *samples)
    whole, each = float(ratio(np.arange(len(a)))), ratio(np.arange(len(a))[:, None]).tolist()
    return Ratio(whole, min(whole, *each), max(whole, *each), *samples, runs=len(a))


def resampled(of: Callable[[np.ndarray], np.ndarray], count: int) -> tuple[float, float, float]:
    """A statistic of `count` texts with its 95% interval from resampling them: (value, low, high).

    of: indices of texts (..., count) -> the statistic (...).
    """
    low, high = np.percentile(of(resamples(count)), [2.5, 97.5])
    return float(of(np.arange(count))), float(low), float(high)


def resamples(count: int, seed: int = 0) -> np.ndarray:
    """Bootstrap indices: (RESAMPLES, count) random numbers below `count`."""
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))


@contextmanager
def no_gc() -> Iterator[None]:
    """Switch Python's garbage collector off inside the timed part."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def seconds_text(seconds: float) -> str:
    """Format seconds in a readable unit: 0.0123 -> '12.3 ms'."""
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _block(fn: Callable[[], Any], device: Any) -> Callable[[], float]:
    def run() -> float:
        sync(device)
        start = perf_counter()
        fn()
        sync(device)
        return perf_counter() - start

    return run


def _warm_up(run: Callable[[], float], warmup: int | str) -> None:
    if warmup != "auto":
        for _ in range(int(warmup)):
            run()
        return
    times = [run(), run()]
    while abs(times[-1] - times[-2]) >= STEADY * times[-2] and len(times) < 10:
        times.append(run())


# --- Requests

NAN = math.nan
NINE_IN_TEN = 0.9  # share of the requests that must meet their limits


@dataclass(frozen=True)
class Timeline:
    """Token times of one request: submitted at `start`, tokens readable at `times` (seconds). No tokens: failed."""

    start: float
    times: Sequence[float]

    @property
    def failed(self) -> bool:
        """Whether no token arrived."""
        return len(self.times) == 0

    @property
    def ttft(self) -> float:
        """Time to first token in seconds; NaN without tokens."""
        return NAN if self.failed else self.times[0] - self.start

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds, n - 1 of them. A step that commits several tokens adds zeros: use TPOT."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def tpot(self) -> float:
        """Time per output token after the first, (t_n - t_1)/(n - 1) seconds; NaN, never 0, below two tokens."""
        return NAN if len(self.times) < 2 else (self.times[-1] - self.times[0]) / (len(self.times) - 1)

    @property
    def e2e(self) -> float:
        """End-to-end latency t_n - t_0 in seconds; NaN without tokens."""
        return NAN if self.failed else self.times[-1] - self.start


class TokenClock:
    """A streamer for transformers: `generate(..., streamer=clock)` records when each token arrives.

    Text streamers hold text back until a word ends, so they do not show when a token arrives.
    """

    def __init__(self):
        self.start, self.times = perf_counter(), []
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Called by generate: first with the prompt's ids, which are not counted, then with each token."""
        if self._prompt_seen:
            self.times.append(perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        """Called by generate after the last token."""

    def timeline(self) -> Timeline:
        """The recorded times as a Timeline that starts when this clock was created."""
        return Timeline(self.start, tuple(self.times))


def makespan(timelines: Sequence[Timeline]) -> float:
    """Seconds from the first arrival to the last token of a run; NaN without tokens."""
    ends = [t.times[-1] for t in timelines if not t.failed]
    return max(ends) - min(t.start for t in timelines) if ends else NAN


def percentiles(values: Sequence[float], qs: Sequence[float] = (50, 90, 99)) -> dict[float, float]:
    """Percentiles of `values`, {q: value}, with linear interpolation; NaNs (failed requests) are left out.

    TTFT and TPOT: pass one value per request. ITL: pass the gaps of all requests together, so that the longest show.
    Every percentile of no values is NaN.
    """
    known = [value for value in values if not math.isnan(value)]
    return {q: float(np.percentile(known, q)) if known else NAN for q in qs}


def capacity(attained: dict[float, float]) -> float:
    """Highest arrival rate (requests/s) whose attainment is at least NINE_IN_TEN; 0 if none. attained: by rate."""
    return max((rate for rate, fraction in attained.items() if fraction >= NINE_IN_TEN), default=0.0)
