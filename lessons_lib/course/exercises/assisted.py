"""Checkers: greedy verification, a draft without randomness, two caches after a step, and how fast a draft must be."""

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.measure.cost import break_even


@exercise("06.1")
def verify(attempt):
    """The draft tokens before the first mismatch, then the target's own token."""
    expect(attempt, [5, 6, 7], [5, 6, 8, 9], equals=[5, 6, 8])
    expect(attempt, [5, 6, 7], [5, 6, 7, 9], equals=[5, 6, 7, 9])
    expect(attempt, [5, 6, 7], [4, 6, 7, 9], equals=[4])
    expect(attempt, [], [3], equals=[3])


@exercise("06.2")
def certain(attempt):
    """A draft token x with q(x) = 1: accepted with p(x), else p without x; p itself where nothing is left."""
    expect(attempt, [0.5, 0.25, 0.25], 1, equals=(0.25, [2 / 3, 0.0, 1 / 3]))
    expect(attempt, [0.5, 0.25, 0.25], 0, equals=(0.5, [0.0, 0.5, 0.5]))
    expect(attempt, [0.75, 0.25, 0.0], 2, equals=(0.0, [0.75, 0.25, 0.0]))
    expect(attempt, [0.0, 1.0], 1, equals=(1.0, [0.0, 1.0]))


@exercise("06.3")
def kept(attempt):
    """Entries of the target's and of the draft's cache after a step: the last draft token never ran."""
    expect(attempt, 10, 4, 2, equals=(13, 13))
    expect(attempt, 10, 4, 0, equals=(11, 11))
    expect(attempt, 10, 4, 4, equals=(15, 14))
    expect(attempt, 1, 1, 1, equals=(3, 2))


@exercise("06.4")
def slowest(attempt):
    """The largest c that gains, against the library's break-even the other way round."""
    expect(attempt, 0.6, lambda rows: 1.0, 8, equals=0.6)
    expect(attempt, 1.0, lambda rows: 1.0, 8, equals=1.0)
    for alpha, slope in [(0.7, 0.05), (0.9, 0.2)]:
        v = lambda rows, slope=slope: 1 + slope * (rows - 1)  # noqa: E731
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if break_even(middle, v, 8) < alpha else (low, middle)
        expect(attempt, alpha, v, 8, equals=low, tolerance=1e-5)
