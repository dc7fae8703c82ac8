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
class Listed:
    """One of these counts of tokens, drawn with replacement: seen elsewhere; ValueError for none, or one below 1."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts:
            raise ValueError("A list of lengths needs at least one.")
        _positive(count=min(self.counts))

    def draw(self, rng: Random) -> int:
        """Tokens, one of `counts`."""
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


def _check_rate(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise ValueError(f"The arrival rate must be a positive number of requests per second, not {rate}.")


CHAT_IDS = 1000  # the vocabulary of scripted chats


@dataclass(frozen=True)
class Workload:
    """`count` requests; max_tokens: the limit that policies see, each request's own output length if None.

    vocab_size: prompts get random ids below it, where a model or a prefix cache wants ids; None: lengths alone.
    """

    count: int = 48
    prompts: Lengths = field(default_factory=lambda: Uniform(16, 128))
    outputs: Lengths = field(default_factory=lambda: Exponential(48, 192))
    arrivals: Arrivals = field(default_factory=AtOnce)
    max_tokens: int | None = None
    vocab_size: int | None = None
    seed: int = 0

    def requests(self) -> list[Sequence]:
        """The same requests every time. Lengths and arrivals have streams of their own: a rate changes no length.

        ValueError for a count of none, a max_tokens below 1 and a vocabulary without ids.
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


@dataclass(frozen=True)
class Conversations:
    """Multi-turn chats: each prompt repeats a system text, which all share, and the chat so far.

    The answers in the history are scripted (Sequence.reply), so that they can be replayed anywhere. arrivals: of the
    chats; the next turn of a chat comes `pause` seconds after the one before, answered or not.
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
        """All turns of all chats; ids are "chat.turn". ValueError for a negative pause that leads before the start."""
        rng = Random(f"chats {self.seed}")
        times = self.arrivals.times(self.count, Random(f"arrivals {self.seed}"))
        system = random_ids(self.system, CHAT_IDS, rng)
        return [turn for chat, time in enumerate(times) for turn in self._chat(chat, time, system, rng)]

    def _chat(self, chat: int, time: float, history: list[int], rng: Random) -> list[Sequence]:
        made = []
        for turn in range(self.turns):
            prompt = history + random_ids(self.questions.draw(rng), CHAT_IDS, rng)
            reply = random_ids(self.answers.draw(rng), CHAT_IDS, rng)
            arrival = time + turn * self.pause
            made.append(Sequence(f"{chat}.{turn}", arrival, 0, len(reply), ids=list(prompt), reply=reply))
            history = prompt + reply
        return made


def random_ids(count: int, vocab_size: int, rng: Random) -> list[int]:
    """So many token ids below vocab_size; ValueError for a vocab_size below 1."""
    return [rng.randrange(vocab_size) for _ in range(count)]
