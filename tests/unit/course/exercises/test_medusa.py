"""Lesson 09's exercises: they ask for what the library does, and the usual mistakes are seen."""

import math

import pytest
import torch

from lessons_lib.decoding.sampling import Typical
from lessons_lib.training.collect import Text
from lessons_lib.training.medusa import MISSING, examples


def trained_on(ids, k):
    """What the library trains head k on; it has no head 0."""
    labels = examples(Text("", ids, 1, 0.0, torch.zeros(len(ids) - 1, 1)), k)[2][:, k - 1] if k else ids[1:]
    return [(t, int(token)) for t, token in enumerate(labels) if token != MISSING]


def taken(p, epsilon, delta):
    """What Typical accepts."""
    p = torch.tensor(p, dtype=torch.float64)
    return (p > Typical(epsilon, delta).threshold(p)).nonzero().flatten().tolist()


@pytest.mark.parametrize("name, attempt", [("09.1", trained_on), ("09.4", taken)])
def test_the_library_gives_what_is_asked_for(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


def entropy(p, log=math.log):
    return -sum(x * log(x) for x in p if x > 0)


def chosen(p, threshold):
    return [token for token, x in enumerate(p) if x > threshold]


def beginnings(row, column):
    return row[: len(column)] == column


def mask(nodes, sees):
    return torch.tensor([[sees(row, column) for column in nodes] for row in nodes])


def by_length(choices):
    return [(), *sorted(choices, key=lambda choice: (len(choice), choice))]


@pytest.mark.parametrize("name, wrong", [
    ("09.1", lambda ids, k: list(enumerate(ids[k:]))),  # the token at t + k
    ("09.1", lambda ids, k: [(t, ids[(t + k + 1) % len(ids)]) for t in range(len(ids))]),
    ("09.2", lambda choices: mask(by_length(choices), lambda row, column: beginnings(column, row))),  # transposed
    ("09.2", lambda choices: mask([(), *sorted(choices)], beginnings)),  # branch by branch
    ("09.2", lambda choices: mask([(), *choices], beginnings)),
    ("09.2", lambda choices: torch.ones(1 + len(choices), 1 + len(choices), dtype=torch.bool).tril()),
    ("09.2", lambda choices: mask(by_length(choices), lambda row, column: column in (row, row[:-1]))),  # parents only
    ("09.3", lambda accuracies, nodes: [(0,) * depth for depth in range(1, nodes + 1)]),
    ("09.3", lambda accuracies, nodes: [(rank,) for rank in range(nodes)]),
    ("09.4", lambda p, epsilon, delta: chosen(p, max(epsilon, delta * math.exp(-entropy(p))))),
    ("09.4", lambda p, epsilon, delta: chosen(p, min(delta, epsilon * math.exp(-entropy(p))))),  # swapped
    ("09.4", lambda p, epsilon, delta: chosen(p, min(epsilon, delta * math.exp(-entropy(p, math.log2))))),
    ("09.4", lambda p, epsilon, delta: chosen(p, min(0.09, 0.3 * math.exp(-entropy(p))))),
    ("09.4", lambda p, epsilon, delta: chosen(p, epsilon)),
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
