"""Lesson 11's exercises: right answers pass, and the usual mistakes are seen."""

from itertools import pairwise

import pytest


def fastest(layer_weights, head_weights, layer_bits, head_bits, entry, cached, rate):
    moved = (layer_weights * layer_bits + head_weights * head_bits) / 8 + entry * cached
    return rate / moved


def gains(speeds, below):
    return {name: speeds[name] / speeds[of] if of else 1.0 for name, of in below.items()}


def with_drafts(rows, committed, one, v, around):
    return sum(committed) / sum(one * v[w] + around for w in rows)


def of_request(prefill, decoding, times):
    return (prefill + decoding) / (prefill + decoding / times)


RIGHT = {"11.1": fastest, "11.2": gains, "11.3": with_drafts, "11.4": of_request}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name, checked):
    assert checked(name, RIGHT[name]) == f"{name}: passed\n"


@pytest.mark.parametrize("name, wrong", [
    ("11.1", lambda L, H, lb, hb, e, S, r: r / ((L * lb + H * hb) / 8)),  # without the cache
    ("11.1", lambda L, H, lb, hb, e, S, r: r / ((L + H) * lb / 8 + e * S)),  # one format for all
    ("11.1", lambda L, H, lb, hb, e, S, r: r / (L * lb + H * hb + e * S)),  # bits for bytes
    ("11.1", lambda *a: 1 / fastest(*a)),
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
