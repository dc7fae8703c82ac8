"""Lesson 06's exercises: the usual mistakes are seen."""

import pytest

from lessons_lib.decoding.probing import agreed


def without(p, x):
    return [0.0 if y == x else chance for y, chance in enumerate(p)]


def tokens(alpha, gamma):
    return sum(alpha**i for i in range(gamma + 1))


@pytest.mark.parametrize("name, wrong", [
    ("06.1", lambda guesses, said: said[: agreed(guesses, said)]),  # the target's own token is forgotten
    ("06.1", lambda guesses, said: [a for a, b in zip(guesses, said, strict=False) if a == b] + said[-1:]),  # goes on
    ("06.1", lambda guesses, said: said),
    ("06.2", lambda p, x: (p[x], without(p, x))),  # not divided by its sum
    ("06.2", lambda p, x: (1 - p[x], [y / (sum(without(p, x)) or 1) for y in without(p, x)])),  # rejected, not accepted
    ("06.2", lambda p, x: (p[x], p)),  # drawn anew from the target
    ("06.3", lambda cached, gamma, accepted: (cached + 1 + accepted, cached + 1 + accepted)),
    ("06.3", lambda cached, gamma, accepted: (cached + accepted, cached + accepted)),
    ("06.3", lambda cached, gamma, accepted: (cached + 1 + gamma, cached + gamma)),  # nothing is rolled back
    ("06.4", lambda alpha, v, most: max((tokens(alpha, g) - v(g)) / g for g in range(1, most + 1))),
    ("06.4", lambda alpha, v, most: (tokens(alpha, most) - v(most + 1)) / most),  # only the longest guess
    ("06.4", lambda alpha, v, most: max(tokens(alpha, g) - v(g + 1) for g in range(1, most + 1))),  # all of them
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    said = checked(name, wrong)
    assert said.startswith(f"{name}: not yet") and " raised " not in said
