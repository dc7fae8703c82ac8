"""Workloads (lesson 05): how long requests are, when they arrive, and traces of both."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
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

    counts: tuple[int, ...]

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


COUNTS, LISTS = ("prompt_length", "output_length", "max_tokens"), ("ids", "reply")
CHAT_IDS = 1000  # the vocabulary of scripted chats
NAMES = ("id", "arrival", *COUNTS, *LISTS, "priority")  # of a trace file


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

    The answers in the history are scripted (Sequence.reply), so that a trace can be replayed anywhere. arrivals: of the
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


def read_trace(path: str | Path) -> list[Sequence]:
    """The requests of a trace file. ValueError naming the first bad line and what is wrong with it."""
    lines = enumerate(Path(path).read_bytes().splitlines(), 1)
    made = [_parse(line, f"{path}, line {number}", number) for number, line in lines if line.strip()]
    if not made:
        raise ValueError(f"{path} holds no request; write one JSON object a line.")
    if len({request.id for request in made}) < len(made):
        raise ValueError(f"{path} uses an id twice; ids must differ, or leave them all out.")
    return made


def write_trace(path: str | Path, requests: list[Sequence]) -> None:
    """Write requests as a trace file that read_trace reads back."""
    rows = [{name: getattr(request.fresh(), name) for name in NAMES} for request in requests]
    kept = [{name: value for name, value in row.items() if value is not None} for row in rows]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in kept))


def _parse(line: bytes, where: str, number: int) -> Sequence:
    try:
        row = json.loads(line)
        problem = _problem(row)
        if problem is None:
            return Sequence(**{"id": number, **row})
    except UnicodeDecodeError:
        problem = "not UTF-8; save the file in that encoding."
    except ValueError as error:  # also what json raises
        problem = str(error)
    raise ValueError(f"{where}: {problem}")


def _problem(row: object) -> str | None:
    """What is wrong with a line's content; None if nothing is."""
    if not isinstance(row, dict):
        return 'not a JSON object; write {"prompt_length": 40, "output_length": 12}.'
    if missing := {"output_length"} - set(row) or ({"prompt_length"} - set(row) if "ids" not in row else set()):
        return f"{missing.pop()} is missing."
    if unknown := sorted(set(row) - set(NAMES)):
        return f"{unknown[0]!r} is not known; use {', '.join(sorted(NAMES))}."
    for name, value in row.items():
        if name in COUNTS and (type(value) is not int or value < 1):
            return f"{name} must be a whole number from 1, not {value!r}."
        if name in ("arrival", "priority") and not (type(value) in (int, float) and abs(value) <= sys.float_info.max):
            return f"{name} must be a finite number, not {value!r:.40}."
        if name == "id" and type(value) not in (int, str):
            return f"id must be a number or a text, not {value!r}."
        if name in LISTS and not (isinstance(value, list) and value and all(type(i) is int for i in value)):
            return f"{name} must be a list of token ids."
    return None
