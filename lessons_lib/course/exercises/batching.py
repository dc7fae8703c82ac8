"""Checkers: a policy that ages, a budget of tokens per pass, the mask of a ragged batch, and static over continuous."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import mean

import torch

from lessons_lib.course.exercises import Attempt, Wrong, called, exercise, expect

SLOTS, COUNT = 4, 400
MEAN_WAIT, LONGEST_WAIT = 22, 150  # in passes; first come, first served: 28 and 107, shortest first: 14 and 240


@dataclass(eq=False)
class Request:
    """A request without a model: as in the lesson, plus the number of passes that it has waited."""

    name: str
    max_new_tokens: int
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    new: list[int] = field(default_factory=list)
    waited: int = 0

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Price:
    """Seconds of a forward pass over some rows."""

    per_pass: float
    per_row: float

    def __call__(self, rows: int) -> float:
        return self.per_pass + self.per_row * rows

    def __repr__(self) -> str:
        return f"rows -> {self.per_pass} + {self.per_row} * rows"


@exercise("05.1")
def patient_shortest_first(attempt: Attempt) -> None:
    """Short requests first, but the longest wait stays bounded."""
    few = [Request("A", 9), Request("B", 2), Request("C", 5)]
    expect(attempt, few, [], 2, equals=[few[1], few[2]])
    expect(attempt, few, [Request("D", 3)], 2, equals=[few[1]])
    expect(attempt, few, [Request("D", 3), Request("E", 1)], 2, equals=[])
    waits = served(attempt)
    assert mean(waits) <= MEAN_WAIT, f"requests wait {mean(waits):.0f} passes on average; at most {MEAN_WAIT} is asked."
    assert max(waits) <= LONGEST_WAIT, f"one request waits {max(waits)} passes; at most {LONGEST_WAIT} is asked."


def served(admit: Callable) -> list[int]:
    """Passes that each of 400 requests waits. About one arrives in 6.4 passes, with 24 tokens on average."""
    random, requests, now = Random(0), [], 0.0
    for number in range(COUNT):
        now += random.expovariate(1 / 6.4)
        requests.append((now, Request(f"R{number}", min(96, 1 + int(random.expovariate(1 / 24))))))
    coming, waiting, running, passes = [*requests], [], [], 0
    while coming or waiting or running:
        while coming and coming[0][0] <= passes:
            waiting.append(coming.pop(0)[1])
        call = f"your policy with {len(waiting)} waiting and {len(running)} running"
        joining = called(call, admit, [*waiting], [*running], SLOTS)
        if not isinstance(joining, list) or any(r not in waiting for r in joining):
            raise Wrong("return a list of waiting requests.")
        if len({id(r) for r in joining}) < len(joining) or len(joining) + len(running) > SLOTS:
            raise Wrong("return each request once, and no more than there are free slots.")
        if waiting and not running and not joining:
            raise Wrong("nothing runs and nobody is admitted: the loop would never end.")
        waiting, running = [r for r in waiting if r not in joining], running + joining
        for r in waiting:
            r.waited += 1
        for r in running:
            r.new.append(0)
        running, passes = [r for r in running if len(r.new) < r.max_new_tokens], passes + 1
    return [r.waited for _, r in requests]


@exercise("05.2")
def plan(attempt: Attempt) -> None:
    """Decoding requests first, a token each; prompts share what is left of the budget, in order."""
    for rows, budget, counts in (
        ([(10, 0), (21, 20), (8, 0)], 16, [10, 1, 5]),
        ([(40, 0), (21, 20)], 16, [15, 1]),
        ([(40, 32), (40, 0), (5, 4)], 16, [8, 7, 1]),
        ([(6, 5), (9, 8)], 2, [1, 1]),
        ([(30, 0), (30, 0), (6, 5)], 8, [7, 0, 1]),
    ):
        running = [Request(f"({total} tokens, {cached} cached)", 8, [0] * total, cached) for total, cached in rows]
        expect(attempt, running, budget, equals=counts)


@exercise("05.3")
def ragged_mask(attempt: Attempt) -> None:
    """Block-diagonal; within a block the query after c cached tokens sees c + 1 keys, the next one more."""
    mask = torch.tensor
    expect(attempt, [3], [0], equals=mask([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool())
    expect(attempt, [1], [3], equals=mask([[1, 1, 1, 1]]).bool())
    expect(attempt, [2, 1], [0, 2], equals=mask([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]).bool())
    expect(attempt, [1, 2], [1, 1], equals=mask([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]).bool())


@exercise("05.4")
def gain(attempt: Attempt) -> None:
    """Seconds of static batching over those of continuous batching, each a sum over passes."""
    constant, full_price, between = Price(1, 0), Price(0, 1), Price(10, 1)
    expect(attempt, [3, 6, 2, 5, 4, 3, 2], 4, constant, equals=10 / 7)
    expect(attempt, [3, 6, 2, 5, 4, 3, 2], 4, full_price, equals=1.0)
    expect(attempt, [3, 6, 2, 5, 4, 3, 2], 4, between, equals=(100 + 25) / (70 + 25))
    expect(attempt, [4, 4, 4, 4], 2, between, equals=1.0)
    expect(attempt, [5, 1, 1, 2, 3], 2, constant, equals=10 / 7)
