"""Lesson 04's exercises: the library's own functions pass, and the usual mistakes are seen."""

import math

import pytest
import torch

from lessons_lib.attention import merge_outputs, naive


def merged(outputs, lses):
    outputs, lses = (torch.tensor(x, dtype=torch.float64) for x in (outputs, lses))
    return merge_outputs(outputs[:, None, None], lses[:, None])[0].item()


def window(q, k, v, window, block_q=16, block_k=16, tiles=True, open_end=False):
    """Banded attention; tiles: without tiles outside the band. open_end: a key too many."""
    at = torch.arange(len(q))
    band = (at <= at[:, None]) & (at > at[:, None] - window - int(open_end))
    if not tiles:
        return naive_by_tiles(q, k, v, band, block_q, block_k)
    return naive(q[None], k[None], v[None], mask=band)[0]


def naive_by_tiles(q, k, v, band, block_q, block_k):
    """Visits every tile, masked or not."""
    rows = []
    for i in range(0, len(q), block_q):
        block = q[i : i + block_q]
        scores = torch.cat([block @ k[j : j + block_k].T for j in range(0, len(k), block_k)], 1) / q.shape[1] ** 0.5
        rows.append(scores.masked_fill(~band[i : i + block_q], -math.inf).softmax(-1) @ v)
    return torch.cat(rows)


def row(scores, values, size, rescale=("l", "o"), running=True):
    """One query by online softmax, with mistakes to switch on."""
    m, total, o = -math.inf, 0.0, 0.0
    for j in range(0, len(scores), size):
        s, v = scores[j : j + size], values[j : j + size]
        new = max(m, *s) if running else max(s)
        c, p = math.exp(m - new), [math.exp(x - new) for x in s]
        total = (c if "l" in rescale else 1) * total + sum(p)
        o = (c if "o" in rescale else 1) * o + sum(x * y for x, y in zip(p, v, strict=True))
        m = new
    return o / total


def mean(numbers, weights):
    return sum(x * weight for x, weight in zip(numbers, weights, strict=True)) / sum(weights)


@pytest.mark.parametrize("name, attempt", [
    ("04.1", window), ("04.2", row), ("04.3", merged),
    ("04.4", lambda H, T, rows, d, e: H * T * d * e + (2 * H * e + 1) * rows * T),
])  # fmt: skip
def test_the_right_answer_passes(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


@pytest.mark.parametrize("name, wrong", [
    ("04.1", lambda *given: window(*given, open_end=True)),
    ("04.1", lambda *given: window(*given, tiles=False)),  # right, but visits every tile
    ("04.2", lambda *given: row(*given, rescale=())),
    ("04.2", lambda *given: row(*given, rescale=("l",))),
    ("04.2", lambda *given: row(*given, running=False)),
    ("04.3", lambda outputs, lses: sum(outputs) / len(outputs)),
    ("04.3", lambda outputs, lses: mean(outputs, list(map(math.exp, lses)))),  # overflows
    ("04.3", lambda outputs, lses: outputs[lses.index(max(lses))]),
    ("04.4", lambda H, T, rows, d, e: (2 * H * e + 1) * rows * T),  # no output
    ("04.4", lambda H, T, rows, d, e: H * T * d * e + (H * e + 1) * rows * T),  # one matrix
    ("04.4", lambda H, T, rows, d, e: H * T * d * e + (2 * H * e + 1) * T * T),  # all rows
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
