"""Lesson 10's exercises: the library's own answers pass, and the usual mistakes are seen."""

import math

import pytest
import torch

from lessons_lib.quantization import LLMInt8Linear, inverse_factor, sweep
from lessons_lib.quantization.integers import quantize


def bytes_of(rows, columns, bits, group, minimum):
    return quantize(torch.randn(rows, columns), bits, group, "affine" if minimum else "absmax").nbytes


def trip(values, bits, group, round=round, guard=True, most=None):
    """Absmax in groups, with mistakes to switch on."""
    most, found = most or 2 ** (bits - 1) - 1, []
    for start in range(0, len(values), group):
        block = values[start : start + group]
        s = max(map(abs, block)) / most or (1.0 if guard else 0.0)
        found += [round(x / s) * s for x in block]
    return found


def mixed(x, w, threshold):
    x, w = (torch.tensor([part], dtype=torch.float64) for part in (x, w))
    return LLMInt8Linear(w, threshold)(x).item()


def corrected(w, H, first):
    """The library's sweep, its first column rounded to `first`, its second looked at."""
    seen = []
    factor = inverse_factor(torch.tensor(H, dtype=torch.float64), 0.0)

    def look(now, j):
        seen.append(now[0, j].item())
        return torch.full((1,), first if j == 0 else 0.0, dtype=torch.float64)

    sweep(torch.tensor([w], dtype=torch.float64), factor, 8, look)
    return seen[1]


RIGHT = [("10.1", bytes_of), ("10.2", trip), ("10.3", mixed), ("10.4", corrected)]


@pytest.mark.parametrize("name, attempt", RIGHT)
def test_the_library_gives_what_is_asked_for(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


def unpacked(rows, columns, bits, group, minimum):
    """Whole codes in a byte, so that 3 bits take 4."""
    return rows * columns // (8 // bits) + rows * columns // group * (2 + 2 * minimum)


def half_up(x):
    return math.floor(x + 0.5)


def loud_by_weight(x, w, threshold):
    pairs = [(a, b) for a, b in zip(x, w, strict=True) if abs(a * b) <= threshold]
    return sum(a * b for a, b in zip(x, w, strict=True)) if not pairs else mixed(*zip(*pairs, strict=True), math.inf)


def dropped(x, w, threshold):
    return mixed([a if abs(a) <= threshold else 0.0 for a in x], w, math.inf)


def one_scale(x, w, threshold):
    """Outliers kept apart, but the scale still reaches them."""
    s, t = max(map(abs, x)) / 127, max(map(abs, w)) / 127
    return sum(a * b if abs(a) > threshold else round(a / s) * s * round(b / t) * t for a, b in zip(x, w, strict=True))


@pytest.mark.parametrize("name, wrong", [
    ("10.1", lambda rows, columns, bits, group, minimum: rows * columns * bits // 8),  # no scales
    ("10.1", lambda rows, columns, bits, group, minimum: rows * columns * bits // 8 + rows * columns // group * 2),
    ("10.1", unpacked),
    ("10.2", lambda values, bits, group: trip(values, bits, len(values))),  # one scale for all
    ("10.2", lambda values, bits, group: trip(values, bits, group, round=half_up)),
    ("10.2", lambda values, bits, group: trip(values, bits, group, guard=False)),
    ("10.2", lambda values, bits, group: trip(values, bits, group, most=2 ** (bits - 1))),
    ("10.2", lambda values, bits, group: trip(values, bits, group, round=int)),  # cut, not rounded
    ("10.3", lambda x, w, threshold: mixed(x, w, math.inf)),
    ("10.3", lambda x, w, threshold: sum(a * b for a, b in zip(x, w, strict=True))),
    ("10.3", dropped),
    ("10.3", one_scale),
    ("10.3", loud_by_weight),
    ("10.4", lambda w, H, first: w[1] + (w[0] - first)),
    ("10.4", lambda w, H, first: w[1] + (w[0] - first) * H[0][1]),
    ("10.4", lambda w, H, first: w[1] + (w[0] - first) * H[0][1] / H[0][0]),
    ("10.4", lambda w, H, first: w[1] - (w[0] - first) * H[0][1] / H[1][1]),
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
