"""Lesson 11's exercises: the usual mistakes are seen."""

from itertools import pairwise

import pytest


@pytest.mark.parametrize("name, wrong", [
    ("11.1", lambda L, H, lb, hb, e, S, r: r / ((L * lb + H * hb) / 8)),  # without the cache
    ("11.1", lambda L, H, lb, hb, e, S, r: r / ((L + H) * lb / 8 + e * S)),  # one format for all
    ("11.1", lambda L, H, lb, hb, e, S, r: r / (L * lb + H * hb + e * S)),  # bits for bytes
    ("11.1", lambda L, H, lb, hb, e, S, r: ((L * lb + H * hb) / 8 + e * S) / r),  # the time, not the rate
    ("11.2", lambda s, b: dict(zip(s, [1.0, *(y / x for x, y in pairwise(s.values()))], strict=True))),
    ("11.2", lambda s, b: {n: v / next(iter(s.values())) for n, v in s.items()}),  # over the first
    ("11.3", lambda w, n, one, v, a: sum(n) / len(w) / one),  # rows for free
    ("11.3", lambda w, n, one, v, a: sum(n) / sum(one * v[k] for k in w)),  # nothing around
    ("11.3", lambda w, n, one, v, a: sum(k / (one * v[i] + a) for i, k in zip(w, n, strict=True)) / len(w)),  # mean
    ("11.4", lambda p, d, x: x),
    ("11.4", lambda p, d, x: (p + d) / (p + d) * x / (1 + p)),
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
