"""When requests come (lesson 05): arrival processes, each with times(count, rng) -> seconds, ascending.

Poisson arrivals are what Kwon et al. 2023 (arXiv 2309.06180) measure serving with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol


class Arrivals(Protocol):
    """An arrival process."""

    def times(self, count: int, rng: Random) -> list[float]:
        """Arrival times of `count` requests in seconds, ascending."""


@dataclass(frozen=True)
class AtOnce:
    """Everything at time 0: how throughput is measured."""

    def times(self, count: int, rng: Random) -> list[float]:
        """`count` zeros, in seconds."""
        return [0.0] * count


@dataclass(frozen=True)
class Poisson:
    """Independent users: `rate` requests per second, gaps exponential; ValueError for a rate that is not positive."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def times(self, count: int, rng: Random) -> list[float]:
        """Seconds, ascending: sums of gaps whose mean is 1 / rate."""
        return list(accumulate(rng.expovariate(self.rate) for _ in range(count)))


@dataclass(frozen=True)
class Bursty:
    """`size` requests at once, the bursts Poisson, `rate` requests per second on average.

    ValueError for a rate that is not positive, and a size below 1.
    """

    rate: float
    size: int = 8

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if self.size < 1:
            raise ValueError(f"A burst needs at least one request, not {self.size}.")

    def times(self, count: int, rng: Random) -> list[float]:
        """Seconds, ascending, equal within a burst; the last burst is cut to `count`."""
        bursts = Poisson(self.rate / self.size).times(-(-count // self.size), rng)
        return [time for time in bursts for _ in range(self.size)][:count]


def _check_rate(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise ValueError(f"The arrival rate must be a positive number of requests per second, not {rate}.")
