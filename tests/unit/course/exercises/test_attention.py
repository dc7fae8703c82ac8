"""Lesson 04's exercises: the library's own functions pass, and the usual mistakes are seen."""

import math

import pytest
import torch
import torch.nn.functional as F

from lessons_lib.attention import naive
from lessons_lib.attention.flash import merge_outputs


def merged(outputs, lses):
    outputs, lses = (torch.tensor(x, dtype=torch.float64) for x in (outputs, lses))
    return merge_outputs(outputs[:, None, None], lses[:, None])[0].item()


def band(q, window):
    at = torch.arange(len(q))
    return (at <= at[:, None]) & (at > at[:, None] - window)


def window(q, k, v, window, block_q=16, block_k=16, all_tiles=False, open_end=False):
    """Banded attention by blocks of queries. all_tiles: also outside the band. open_end: a key too many."""
    seen, rows = band(q, window + open_end), []
    for i in range(0, len(q), block_q):
        first = 0 if all_tiles else max(0, i - window - open_end + 1) // block_k * block_k
        block, keys = slice(i, i + block_q), slice(first, None if all_tiles else i + block_q)
        scores = (q[block] @ k[keys].T / q.shape[1] ** 0.5).masked_fill(~seen[block, keys], -math.inf)
        rows.append(scores.softmax(-1) @ v[keys])
    return torch.cat(rows)


def by_rows(q, k, v, window, *tile):
    """One query at a time, over all keys."""
    scores = torch.stack([k @ row for row in q]) / q.shape[1] ** 0.5
    weights = scores.masked_fill(~band(q, window), -math.inf).softmax(-1)
    return torch.stack([v.T @ row for row in weights])


def at_once(q, k, v, window, *tile):
    return naive(q[None], k[None], v[None], mask=band(q, window))[0]


def by_torch(q, k, v, window, *tile):
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], band(q, window))[0, 0]


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
    ("04.1", lambda *given: window(*given, all_tiles=True)),  # right, but visits every tile, as the next three do
    ("04.1", by_rows),
    ("04.1", at_once),
    ("04.1", by_torch),
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
