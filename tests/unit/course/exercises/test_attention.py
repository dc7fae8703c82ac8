"""Lesson 04's exercises: they ask for what the library does, and the usual mistakes are seen."""

import math

import pytest
import torch

from lessons_lib.attention import Partial, merge_outputs
from lessons_lib.attention.split import busy


def absorb(m, l, o, scores, values):  # noqa: E741
    """The library's own, on single numbers."""
    state = Partial(*(torch.tensor([[x]], dtype=torch.float64) for x in (m, l, o)))
    block = Partial.of(torch.tensor([scores], dtype=torch.float64), torch.tensor([values], dtype=torch.float64).mT)
    both = state.merge(block)
    return both.m.item(), both.l.item(), both.o.item()


def merged(outputs, logsumexps):
    outputs, logsumexps = (torch.tensor(x, dtype=torch.float64) for x in (outputs, logsumexps))
    return merge_outputs(outputs[:, None, None], logsumexps[:, None])[0].item()


def longest(memory, heads, element):
    return math.isqrt(memory // (2 * heads * element))


def splits(rows, processors, cached, least, worth=busy):
    options = range(1, max(1, cached // least) + 1)
    best = max(worth(rows, processors, n) for n in options)
    return next(n for n in options if worth(rows, processors, n) == best)


@pytest.mark.parametrize("name, attempt", [("04.1", longest), ("04.2", absorb), ("04.3", merged), ("04.4", splits)])
def test_the_library_gives_what_is_asked_for(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


def step(m, l, o, scores, values, kept=True, guard=True, shifted=True):  # noqa: E741
    """One step of online softmax, with mistakes to switch on."""
    new = max(m, *scores)
    at = new if shifted else 0
    if guard and new == -math.inf:
        return m, l, o
    c = math.exp(m - new) if kept else 1.0
    p = [math.exp(s - at) for s in scores]
    return new, l * c + sum(p), o * c + sum(a * b for a, b in zip(p, values, strict=True))


def block_maximum(m, l, o, scores, values):  # noqa: E741
    """Rescales to the block's maximum, even if it is lower."""
    new = max(scores)
    p = [math.exp(s - new) for s in scores]
    c = math.exp(m - new)
    return new, l * c + sum(p), o * c + sum(a * b for a, b in zip(p, values, strict=True))


def mean(numbers, weights):
    return sum(x * weight for x, weight in zip(numbers, weights, strict=True)) / sum(weights)


@pytest.mark.parametrize("name, wrong", [
    ("04.1", lambda memory, heads, element: math.isqrt(memory // (heads * element))),  # one matrix
    ("04.1", lambda memory, heads, element: memory // (2 * heads * element)),
    ("04.1", lambda memory, heads, element: round((memory / (2 * heads * element)) ** 0.5)),
    ("04.2", lambda *given: step(*given, kept=False)),
    ("04.2", lambda *given: step(*given, guard=False)),
    ("04.2", lambda *given: step(*given, shifted=False)),
    ("04.2", block_maximum),
    ("04.3", lambda outputs, logsumexps: sum(outputs) / len(outputs)),
    ("04.3", lambda outputs, logsumexps: mean(outputs, [x + 1 for x in logsumexps])),
    ("04.3", lambda outputs, logsumexps: mean(outputs, list(map(math.exp, logsumexps)))),  # overflows
    ("04.3", lambda outputs, logsumexps: outputs[logsumexps.index(max(logsumexps))]),
    ("04.4", lambda rows, processors, cached, least: max(1, processors // rows)),
    ("04.4", lambda rows, processors, cached, least: max(1, cached // least)),
    ("04.4", lambda rows, processors, cached, least: min(-(-processors // rows), max(1, cached // least))),
    ("04.4", lambda *sizes: splits(*sizes, worth=lambda rows, processors, n: min(1, rows * n / processors))),
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
