"""When each token arrived, and the figures made of it (lessons 01, 05): TTFT, ITL, TPOT, throughput, goodput.

t_0: the request was handed in; t_1..t_n: output tokens readable on the host.
TTFT = t_1 - t_0, ITL_i = t_i - t_{i-1}, TPOT = (t_n - t_1)/(n - 1), E2E = t_n - t_0 = TTFT + (n - 1)·TPOT.
Tools differ in these: print the formula.
Source: Zhong et al. 2024 (DistServe: goodput, capacity).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

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
