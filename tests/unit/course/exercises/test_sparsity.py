"""Lesson 12's exercises: the library gives what is asked for, and the usual mistakes are seen."""

import pytest
import torch

from lessons_lib.measure.sparsity import kept_count, threshold


def fewest(weights, mass):
    return kept_count(torch.tensor(weights, dtype=torch.float64), mass).item()


def cut_at(values, sparsity):
    return threshold(torch.tensor(values), sparsity)


@pytest.mark.parametrize("name, attempt", [("12.1", fewest), ("12.2", cut_at)])
def test_the_library_gives_what_is_asked_for(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


def in_given_order(weights, mass):
    held = torch.tensor(weights, dtype=torch.float64).cumsum(0)
    return int((held < mass).sum()) + 1


def one_too_many(weights, mass):
    held = torch.tensor(weights, dtype=torch.float64).sort(descending=True).values.cumsum(0)
    return int((held <= mass).sum()) + 1


def without_rounding(weights, mass):
    held = 0
    for k, weight in enumerate(sorted(weights, reverse=True), 1):
        held += weight
        if held >= mass:
            return k
    return None


@pytest.mark.parametrize("name, wrong", [
    ("12.1", in_given_order),
    ("12.1", one_too_many),
    ("12.1", without_rounding),
    ("12.1", lambda weights, mass: sum(w > 1 - mass for w in weights)),  # a fixed threshold
    ("12.2", lambda values, s: sorted(values)[round(s * len(values)) - 1] if s else 0.0),  # without sizes
    ("12.2", lambda values, s: sorted(map(abs, values))[round(s * len(values)) - (s == 0)]),  # one too far
    ("12.2", lambda values, s: s * max(map(abs, values))),
    ("12.3", lambda active: 1 - sum(map(sum, active)) / len(active) / len(active[0])),  # mean over rows
    ("12.3", lambda active: sum(any(column) for column in zip(*active, strict=True)) / len(active[0])),  # what is read
    ("12.3", lambda active: sum(not all(column) for column in zip(*active, strict=True)) / len(active[0])),
    ("12.4", lambda L, D, F, N, s: 1 / (1 - s * 3 * L * D * F / N)),  # the gate is skipped, too
    ("12.4", lambda L, D, F, N, s: 1 / (1 - s * 2 / 3)),  # nothing but the MLP
    ("12.4", lambda L, D, F, N, s: 1 / (1 - s)),
    ("12.4", lambda L, D, F, N, s: 1 - s * 2 * L * D * F / N),  # the time, not the gain
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
