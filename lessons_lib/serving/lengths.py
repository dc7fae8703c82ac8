"""How long prompts and outputs are (lesson 05): distributions of token counts, each with draw(rng) -> int >= 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol


class Lengths(Protocol):
    """A distribution of token counts."""

    def draw(self, rng: Random) -> int:
        """One count, at least 1."""


@dataclass(frozen=True)
class Fixed:
    """Always `count` tokens; ValueError below 1."""

    count: int

    def __post_init__(self) -> None:
        _positive(count=self.count)

    def draw(self, rng: Random) -> int:
        """`count` tokens."""
        return self.count


@dataclass(frozen=True)
class Uniform:
    """Every count from low to high, both included, equally often; ValueError if low is above high or below 1."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _positive(low=self.low, high=self.high)
        if self.low > self.high:
            raise ValueError(f"Uniform lengths go from low to high, not from {self.low} to {self.high}.")

    def draw(self, rng: Random) -> int:
        """Tokens, `low` to `high`."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True)
class Exponential:
    """Exponential with this scale, capped. What lies above the cap becomes the cap, or with reject is drawn again.

    mean, cap: tokens. Rejecting lowers the mean to mean - cap/(e^(cap/mean) - 1); see `expected`. ValueError unless
    both are positive.
    """

    mean: float
    cap: int
    reject: bool = False

    def __post_init__(self) -> None:
        _positive(mean=self.mean, cap=self.cap)

    def draw(self, rng: Random) -> int:
        """Tokens, 1 to `cap`."""
        length = rng.expovariate(1 / self.mean)
        while self.reject and length > self.cap:
            length = rng.expovariate(1 / self.mean)
        return max(1, min(self.cap, round(length)))

    @property
    def expected(self) -> float:
        """The mean in tokens after the cap, before rounding."""
        if self.reject:
            return self.mean - self.cap / math.expm1(self.cap / self.mean)
        return -self.mean * math.expm1(-self.cap / self.mean)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal around its median, with the standard deviation sigma of the logarithm; capped, as chat lengths are.

    median, cap: tokens. ValueError unless all three are positive.
    """

    median: float
    sigma: float
    cap: int

    def __post_init__(self) -> None:
        _positive(median=self.median, sigma=self.sigma, cap=self.cap)

    def draw(self, rng: Random) -> int:
        """Tokens, 1 to `cap`."""
        return max(1, min(self.cap, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True)
class Listed:
    """One of these counts of tokens, drawn with replacement: seen elsewhere; ValueError for none, or one below 1."""

    counts: Sequence[int]

    def __post_init__(self) -> None:
        if not self.counts:
            raise ValueError("A list of lengths needs at least one.")
        _positive(count=min(self.counts))

    @classmethod
    def from_file(cls, path: str | Path) -> Listed:
        """The counts of a file, one a line, empty lines skipped.

        ValueError naming the first line that is no count, and for a file without any.
        """
        counts = []
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            if line.strip():
                if not line.strip().isdecimal() or int(line) < 1:
                    raise ValueError(
                        f"{path}, line {number}: {line.strip()!r} is not a length; write one count a line."
                    )
                counts.append(int(line))
        return cls(tuple(counts))

    def draw(self, rng: Random) -> int:
        """Tokens, one of `counts`."""
        return rng.choice(self.counts)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, not {value}.")
