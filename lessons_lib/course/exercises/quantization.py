"""Checkers: bytes of a matrix, rounding in groups, outliers kept apart, and GPTQ's one column."""

import math
import random

from lessons_lib.course.exercises import exercise, expect


@exercise("10.1")
def bytes_of(attempt):
    """Bytes of a matrix: codes without a gap, a scale of 16 bits for each group, and perhaps as much for a minimum."""
    expect(attempt, 576, 576, 4, 32, True, equals=576 * 576 // 2 + 576 * 18 * 4)
    expect(attempt, 576, 576, 4, 64, False, equals=576 * 576 // 2 + 576 * 9 * 2)
    expect(attempt, 1536, 576, 3, 64, True, equals=1536 * 576 * 3 // 8 + 1536 * 9 * 4)
    expect(attempt, 576, 1536, 8, 1536, False, equals=576 * 1536 + 576 * 2)


@exercise("10.2")
def round_trip(attempt):
    """Values after absmax rounding in groups; a group of zeros stays zero, halves go to the even level."""
    eight = [1.2, -0.5, -4.3, 1.2, -3.1, 0.8, 2.4, 5.4]
    expect(attempt, eight, 8, 8, equals=_absmax(eight, 8, 8))
    expect(attempt, [7.0, 3.4, -1.0, 0.2, 70.0, 34.0, -12.0, 4.0], 4, 4, equals=[7, 3, -1, 0, 70, 30, -10, 0])
    expect(attempt, [0.0, 0.0, 3.0, -1.4], 3, 2, equals=[0, 0, 3, -1])
    expect(attempt, [3.0, 0.5, 1.5, 2.5], 3, 4, equals=[3, 0, 2, 2])
    expect(attempt, [1.0, 100.0, 1.0, 1.0], 2, 2, equals=[0, 100, 1, 1])


def _absmax(values: list[float], bits: int, group: int) -> list[float]:
    found, most = [], 2 ** (bits - 1) - 1
    for start in range(0, len(values), group):
        block = values[start : start + group]
        scale = max(map(abs, block)) / most or 1.0
        found += [round(x / scale) * scale for x in block]
    return found


@exercise("10.3")
def mixed(attempt):
    """x·w with loud values of x multiplied as they are, all others and their weights in 8 bits."""
    x, w = [0.05, -0.04, 60.0], [1.0, 1.0, 0.001]
    expect(attempt, x, w, 6.0, equals=_mixed(x, w, 6.0))  # 0.06984
    expect(attempt, x, w, math.inf, equals=0.0)
    expect(attempt, x, w, 0.0, equals=0.07)
    expect(attempt, [0.0, 0.0, 8.0], [1.0, -1.0, 0.5], 6.0, equals=4.0)  # nothing is left to round
    draw = random.Random(0)
    x, w = ([draw.gauss(0, 1) for _ in range(8)] for _ in range(2))
    expect(attempt, [*x, -20.0], [*w, 0.3], 6.0, equals=_mixed([*x, -20.0], [*w, 0.3], 6.0))


def _mixed(x: list[float], w: list[float], threshold: float) -> float:
    exact = sum(a * b for a, b in zip(x, w, strict=True) if abs(a) > threshold)
    quiet = [0.0 if abs(a) > threshold else a for a in x]
    rounded = zip(_absmax(quiet, 8, len(x)), _absmax(w, 8, len(w)), strict=True)
    return exact + sum(a * b for a, b in rounded)


@exercise("10.4")
def corrected(attempt):
    """What the second weight should become once the first is rounded: w2 + (w1 - q1)·H12 / H22."""
    expect(attempt, [0.4, 0.4], [[1.0, 0.5], [0.5, 1.0]], 0.0, equals=0.6)
    expect(attempt, [0.4, 0.45], [[2.0, 1.8], [1.8, 2.0]], 0.0, equals=0.81)
    expect(attempt, [0.4, 0.4], [[1.0, 0.0], [0.0, 3.0]], 0.0, equals=0.4)
    expect(attempt, [0.6, 0.4], [[1.0, 0.5], [0.5, 2.0]], 1.0, equals=0.3)
