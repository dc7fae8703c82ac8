"""Clocks: timing a callable, comparing two in turn (lesson 00), and when each token of a request arrived (01, 05).

A time is a median with its spread; a comparison is A and B in turn in one process, quoted as a ratio.
With LESSONS_LIB_QUICK=1 in the environment everything is timed once after one run of warm-up: for tests that execute
lessons, where what is counted matters and the times do not.

A request is handed in at t_0; its output tokens are readable on the host at t_1..t_n.
TTFT = t_1 - t_0, ITL_i = t_i - t_{i-1}, TPOT = (t_n - t_1)/(n - 1), E2E = t_n - t_0 = TTFT + (n - 1)·TPOT.
Tools differ in these: print the formula. Source: Zhong et al. 2024 (DistServe: goodput, capacity).
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

QUICK = "LESSONS_LIB_QUICK"
ASYNCHRONOUS = ("cuda", "mps", "xpu")  # devices that return before the work is done
STEADY = 0.05  # warm-up ends when two runs in a row differ by less
NOISY = 0.10  # quartile range over median from which samples are called noisy
RESAMPLES = 2000  # of the bootstrap


@dataclass(frozen=True)
class Samples:
    """Seconds of repeated runs, one at least."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds that half of the runs take at most."""
        return self._quantile(50)

    @property
    def q1(self) -> float:
        """The lower quartile in seconds."""
        return self._quantile(25)

    @property
    def q3(self) -> float:
        """The upper quartile in seconds."""
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
        """True if the middle half of the samples spreads over more than 10 % of the median."""
        return self.q3 - self.q1 > NOISY * self.median

    def __str__(self) -> str:
        text = f"{seconds_text(self.median)} (min {seconds_text(self.min)}, quartiles {seconds_text(self.q1)}"
        return f"{text} to {seconds_text(self.q3)}, n={len(self.times)}{', noisy' if self.noisy else ''})"

    def _quantile(self, percent: float) -> float:
        return float(np.percentile(self.times, percent))


@dataclass(frozen=True)
class Ratio:
    """Median of the paired ratios a/b with its bootstrap 95 % interval. Of seconds, 2: b is twice as fast."""

    value: float
    low: float
    high: float
    a: Samples
    b: Samples

    @property
    def differs(self) -> bool:
        """False if the interval contains 1: no difference seen."""
        return not self.low <= 1 <= self.high

    @property
    def samples(self) -> tuple[float, ...]:
        """The ratios a/b of the pairs, in the order of the runs."""
        return tuple(a / b for a, b in zip(self.a.times, self.b.times, strict=True))

    def __str__(self) -> str:
        text = f"{self.value:.2f} (95%: {self.low:.2f} to {self.high:.2f})"
        return text if self.differs else f"{text}: no difference seen"

    @classmethod
    def of(cls, a: Samples, b: Samples) -> Ratio:
        """Pair the i-th sample of a with the i-th of b. Raises ValueError if their numbers differ or are 0."""
        return cls(*bootstrap(list(zip(a.times, b.times, strict=True))), a, b)


def sync(device: Any) -> None:
    """Wait until the device has done all its work. Nothing to wait for on a CPU."""
    import torch

    kind = _kind(device)
    if kind in ASYNCHRONOUS:
        getattr(torch, kind).synchronize(*([] if kind == "mps" else [device]))


def timed(fn: Callable[[], Any], device: Any = "cpu", repeats: int = 5, warmup: int | str = "auto") -> Samples:
    """Seconds of `repeats` runs of fn after warm-up, garbage collection off, device synced around each run.

    warmup: a number of runs, or "auto": until two in a row differ by less than 5 %, at least 2, at most 10; ValueError
    for other words. Errors of fn come through.
    """
    return in_turn({"fn": fn}, device, repeats, warmup)["fn"]


def compare(
    a: Callable[[], Any],
    b: Callable[[], Any],
    device: Any = "cpu",
    repeats: int = 5,
    warmup: int | str = "auto",
) -> Ratio:
    """Time a and b in turn (ABAB...) after warming up both; the ratio of their times a/b.

    Errors as `timed`, and ValueError for no repeats.
    """
    found = in_turn({"a": a, "b": b}, device, repeats, warmup)
    return Ratio.of(found["a"], found["b"])


def in_turn(
    fns: Mapping[Any, Callable[[], Any]],
    device: Any = "cpu",
    repeats: int = 5,
    warmup: int | str = "auto",
) -> dict[Any, Samples]:
    """Time several functions in turn (ABCABC...) after warming up each as `timed`: a slow moment falls on all of them.

    fns: by any key, such as (method, length); the samples come back under the same keys. Errors as `timed`.
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
    """How often to run what is timed: `repeats`, or at most once where LESSONS_LIB_QUICK=1 is set."""
    return min(repeats, 1) if os.environ.get(QUICK) == "1" else repeats


def keeping(found: dict, key: Any, call: Callable[[], Any]) -> Callable[[], None]:
    """`call` as something to time, which leaves what it returns in found[key]."""

    def run() -> None:
        found[key] = call()

    return run


def bootstrap(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Median of the ratios a/b over pairs (a, b), and the ends of its 95 % interval: (value, low, high).

    Pairs are drawn again with replacement (Efron 1979), always the same draws. Medians are of logarithms, so that
    swapping a and b inverts; both are positive. ValueError for no pairs.
    """
    if not pairs:
        raise ValueError("No pairs to compare; measure at least one.")
    logs = np.log([a / b for a, b in pairs])
    drawn = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    low, high = np.percentile(np.median(logs[drawn], axis=1), [2.5, 97.5])
    return math.exp(np.median(logs)), math.exp(low), math.exp(high)


@contextmanager
def no_gc() -> Iterator[None]:
    """Keep Python's garbage collector out of the timed part."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def seconds_text(seconds: float) -> str:
    """0.0123 -> '12.3 ms': seconds in the unit that reads best."""
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _block(fn: Callable[[], Any], device: Any) -> Callable[[], float]:
    waits = _kind(device) in ASYNCHRONOUS

    def run() -> float:
        if waits:
            sync(device)
        start = perf_counter()
        fn()
        if waits:
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


def _kind(device: Any) -> str:
    return str(device).split(":")[0]


# --- Requests

NAN = math.nan
NINE_IN_TEN = 0.9  # of the requests that must keep their limits


@dataclass(frozen=True)
class Timeline:
    """One request: handed in at `start`, tokens readable at `times` (seconds). No tokens: failed."""

    start: float
    times: Sequence[float]

    @property
    def failed(self) -> bool:
        """Whether no token came."""
        return len(self.times) == 0

    @property
    def ttft(self) -> float:
        """Seconds to the first token; NaN if there is none."""
        return NAN if self.failed else self.times[0] - self.start

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds, n - 1 of them. A step committing several tokens gives zeros: use TPOT."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first, (t_n - t_1)/(n - 1); NaN below two tokens, never 0."""
        return NAN if len(self.times) < 2 else (self.times[-1] - self.times[0]) / (len(self.times) - 1)

    @property
    def e2e(self) -> float:
        """End-to-end latency in seconds: t_n - t_0; NaN if there is no token."""
        return NAN if self.failed else self.times[-1] - self.start


class TokenClock:
    """A streamer for transformers: `generate(..., streamer=clock)` notes when each token came.

    Text streamers hold text back until a word ends, so text arrival is not token arrival.
    """

    def __init__(self):
        self.start, self.times = perf_counter(), []
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Called by generate: first with the prompt's ids, which are no output, then with each token."""
        if self._prompt_seen:
            self.times.append(perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        """Called by generate after the last token."""

    def timeline(self) -> Timeline:
        """What was noted: the clock's making as the start, a time a token."""
        return Timeline(self.start, tuple(self.times))


def makespan(timelines: Sequence[Timeline]) -> float:
    """Seconds from the first arrival to the last token of a run; NaN without any."""
    ends = [t.times[-1] for t in timelines if not t.failed]
    return max(ends) - min(t.start for t in timelines) if ends else NAN


def throughput(timelines: Sequence[Timeline]) -> float:
    """Output throughput of a run: new tokens per second of its makespan, prompt tokens not counted; NaN without any."""
    return sum(len(t.times) for t in timelines) / makespan(timelines)


def percentiles(values: Sequence[float], qs: Sequence[float] = (50, 90, 99)) -> dict[float, float]:
    """{q: the value that q % of `values` do not exceed}, interpolated linearly; NaNs, as of failed requests, left out.

    TTFT and TPOT: of one value a request. ITL: of the gaps of all requests together, which shows the longest.
    ValueError for a q outside 0 to 100; every percentile of nothing is NaN.
    """
    known = [value for value in values if not math.isnan(value)]
    if not all(0 <= q <= 100 for q in qs):
        raise ValueError(f"percentiles lie between 0 and 100, not {list(qs)}; for the median ask for 50")
    return {q: float(np.percentile(known, q)) if known else NAN for q in qs}


def meets(timeline: Timeline, ttft: float, tpot: float) -> bool:
    """True if a request kept both limits (seconds). A single token has no TPOT and is judged by its TTFT."""
    in_time = not timeline.failed and timeline.ttft <= ttft
    return in_time and (math.isnan(timeline.tpot) or timeline.tpot <= tpot)


def attainment(timelines: Sequence[Timeline], ttft: float, tpot: float) -> float:
    """Fraction of requests that kept both limits (seconds); failed ones are misses. ZeroDivisionError for none."""
    return sum(meets(t, ttft, tpot) for t in timelines) / len(timelines)


def goodput(timelines: Sequence[Timeline], ttft: float, tpot: float) -> float:
    """Requests per second of a run's makespan that kept both limits (seconds)."""
    return sum(meets(t, ttft, tpot) for t in timelines) / makespan(timelines)


def capacity(attained: dict[float, float]) -> float:
    """Highest arrival rate (requests/s) with an attainment of NINE_IN_TEN, of {rate: attainment}; 0 if none has it."""
    return max((rate for rate, fraction in attained.items() if fraction >= NINE_IN_TEN), default=0.0)
