"""Workloads (lesson 05): how long requests are, and when they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Protocol

from lessons_lib.decoding.sequence import Sequence


class Lengths(Protocol):
    """A distribution of token counts."""

    def draw(self, rng: Random) -> int:
        """Sample one count, at least 1."""


@dataclass(frozen=True)
class Fixed:
    """Always `count` tokens."""

    count: int

    def __post_init__(self) -> None:
        _positive(count=self.count)

    def draw(self, rng: Random) -> int:
        """`count` tokens."""
        return self.count


@dataclass(frozen=True)
class Uniform:
    """Uniform between low and high tokens, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _positive(low=self.low, high=self.high)
        if self.low > self.high:
            raise ValueError(f"Uniform lengths go from low to high, not from {self.low} to {self.high}.")

    def draw(self, rng: Random) -> int:
        """A count from `low` to `high`."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True)
class Exponential:
    """Exponential with scale `mean` (tokens), limited to `cap` (tokens).

    Values above the cap are set to it; with reject=True they are sampled again, which lowers the mean to
    mean - cap/(e^(cap/mean) - 1). See `expected`.
    """

    mean: float
    cap: int
    reject: bool = False

    def __post_init__(self) -> None:
        _positive(mean=self.mean, cap=self.cap)

    def draw(self, rng: Random) -> int:
        """A count from 1 to `cap`."""
        length = rng.expovariate(1 / self.mean)
        while self.reject and length > self.cap:
            length = rng.expovariate(1 / self.mean)
        return max(1, min(self.cap, round(length)))

    @property
    def expected(self) -> float:
        """The mean in tokens with the cap, before rounding."""
        if self.reject:
            return self.mean + self.cap * math.exp(-self.cap / self.mean) / math.expm1(-self.cap / self.mean)
        return -self.mean * math.expm1(-self.cap / self.mean)


@dataclass(frozen=True)
class Listed:
    """An empirical distribution: one of `counts` (tokens), sampled with replacement."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts:
            raise ValueError("A list of lengths needs at least one.")
        _positive(count=min(self.counts))

    def draw(self, rng: Random) -> int:
        """One of `counts`."""
        return rng.choice(self.counts)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, not {value}.")


class Arrivals(Protocol):
    """An arrival process."""

    def times(self, count: int, rng: Random) -> list[float]:
        """Arrival times of `count` requests in seconds, ascending."""


@dataclass(frozen=True)
class AtOnce:
    """All requests arrive at time 0, as in throughput benchmarks."""

    def times(self, count: int, rng: Random) -> list[float]:
        """`count` zeros."""
        return [0.0] * count


@dataclass(frozen=True)
class Poisson:
    """A Poisson process, as from many independent users: `rate` requests per second, exponential gaps."""

    rate: float

    def __post_init__(self) -> None:
        _positive(rate=self.rate)

    def times(self, count: int, rng: Random) -> list[float]:
        """Arrival times in seconds, ascending: cumulative sums of gaps with mean 1 / rate."""
        return list(accumulate(rng.expovariate(self.rate) for _ in range(count)))


@dataclass(frozen=True)
class Workload:
    """`count` requests with sampled prompt lengths, output lengths and arrival times.

    max_tokens: the limit known to scheduling policies; None: each request's output length.
    vocab_size: prompts get random ids below it, for a model or a prefix cache; None: only lengths.
    """

    count: int = 48
    prompts: Lengths = field(default_factory=lambda: Uniform(16, 128))
    outputs: Lengths = field(default_factory=lambda: Exponential(48, 192))
    arrivals: Arrivals = field(default_factory=AtOnce)
    max_tokens: int | None = None
    vocab_size: int | None = None
    seed: int = 0

    def requests(self) -> list[Sequence]:
        """Sample the requests, the same ones at every call.

        Lengths and arrivals have separate random generators, so another arrival rate does not change any length.
        """
        if self.count < 1:
            raise ValueError(f"A workload needs at least one request, not {self.count}.")
        times = self.arrivals.times(self.count, Random(f"arrivals {self.seed}"))
        rng, words = Random(f"lengths {self.seed}"), Random(f"ids {self.seed}")
        made = []
        for i, time in enumerate(times):
            prompt, output = self.prompts.draw(rng), self.outputs.draw(rng)
            ids = None if self.vocab_size is None else random_ids(prompt, self.vocab_size, words)
            made.append(Sequence(i, time, prompt, output, self.max_tokens, ids))
        return made


CHAT_IDS = 1000  # vocabulary size of scripted chats


@dataclass(frozen=True)
class Conversations:
    """Multi-turn chats: each prompt is the system prompt that all chats share, plus the chat so far.

    The replies in the history are scripted (Sequence.reply), so that every backend sees the same prompts.
    count: chats. turns: per chat. system: tokens of the system prompt. questions, answers: tokens per turn. arrivals:
    of the chats' first turns. pause: seconds between two turns of a chat, even if the first is not answered yet.
    """

    count: int = 8
    turns: int = 4
    system: int = 64
    questions: Lengths = field(default_factory=lambda: Uniform(8, 32))
    answers: Lengths = field(default_factory=lambda: Exponential(48, 192))
    arrivals: Arrivals = field(default_factory=AtOnce)
    pause: float = 10.0
    seed: int = 0

    def requests(self) -> list[Sequence]:
        """A request for each turn of each chat, with id "chat.turn"."""
        rng = Random(f"chats {self.seed}")
        times = self.arrivals.times(self.count, Random(f"arrivals {self.seed}"))
        system, made = random_ids(self.system, CHAT_IDS, rng), []
        for chat, time in enumerate(times):
            history = system
            for turn in range(self.turns):
                prompt = history + random_ids(self.questions.draw(rng), CHAT_IDS, rng)
                reply = random_ids(self.answers.draw(rng), CHAT_IDS, rng)
                arrival = time + turn * self.pause
                made.append(Sequence(f"{chat}.{turn}", arrival, 0, len(reply), ids=prompt, reply=reply))
                history = prompt + reply  # the next prompt starts with it: a shared prefix
        return made


def random_ids(count: int, vocab_size: int, rng: Random) -> list[int]:
    """`count` random token ids below vocab_size."""
    return [rng.randrange(vocab_size) for _ in range(count)]
