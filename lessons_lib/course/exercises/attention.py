"""Checkers: the longest naive context, one step of online softmax, merging, and how often to split."""

import math

from lessons_lib.attention.split import busy
from lessons_lib.course.exercises import Wrong, exercise, expect, same


@exercise("04.1")
def longest(attempt):
    """Tokens for which two T x T matrices of H heads still fit: floor(sqrt(memory / (2 H e)))."""
    expect(attempt, 8 * 2**30, 9, 4, equals=10_922)
    expect(attempt, 8 * 2**30, 32, 2, equals=8_192)
    expect(attempt, 200, 1, 4, equals=5)
    expect(attempt, 199, 1, 4, equals=4)


@exercise("04.2")
def absorb(attempt):
    """The state (m, l, o) after a block more, as three floats."""
    e, start = math.e, (-math.inf, 0.0, 0.0)
    first = (2.0, 1 + 1 / e, 20 + 10 / e)
    expect(attempt, *start, [1.0, 2.0], [10.0, 20.0], equals=first)
    expect(attempt, *first, [3.0], [30.0], equals=(3.0, 1 + first[1] / e, 30 + first[2] / e))
    expect(attempt, *first, [0.0], [5.0], equals=(2.0, first[1] + e**-2, first[2] + 5 * e**-2))  # no new maximum
    expect(attempt, 1000.0, 1.0, 7.0, [1001.0], [9.0], equals=(1001.0, 1 + 1 / e, 9 + 7 / e))
    expect(attempt, *first, [-math.inf], [5.0], equals=first)  # a masked key
    _no_nan(attempt, *start, [-math.inf], [5.0])


def _no_nan(attempt, *given):
    """A block of masked keys before any other leaves the state as it was."""
    try:
        found = attempt(*given)
    except (ArithmeticError, ValueError) as error:
        raise Wrong(f"a masked block as the first one raised {type(error).__name__}: {error}") from error
    if not same(found[1:], given[1:3]) or found[0] != -math.inf:
        raise Wrong(f"a masked block as the first one gave {found}; expected {given[:3]}.")


@exercise("04.3")
def merged(attempt):
    """One number out of outputs and logsumexps of several workers."""
    expect(attempt, [1.0, 5.0], [0.0, math.log(3)], equals=4.0)
    expect(attempt, [1.0, 5.0, 9.0], [0.0, 0.0, 0.0], equals=5.0)
    expect(attempt, [1.0, 5.0], [1000.0, 1000.0 + math.log(3)], equals=4.0)  # exp(1000) overflows
    expect(attempt, [1.0, 5.0], [-1000.0, -1000.0], equals=3.0)  # exp(-1000) is 0
    expect(attempt, [0.0, 5.0], [-math.inf, 2.0], equals=5.0)  # a worker without keys


@exercise("04.4")
def splits(attempt):
    """The fewest splits that keep most processors busy, each of at least `least` keys."""
    for sizes in [(9, 132, 8192, 256), (32, 108, 4096, 256), (9, 132, 1024, 256), (300, 132, 8192, 256),
                  (128, 132, 65536, 256), (9, 132, 100, 256)]:  # fmt: skip
        expect(attempt, *sizes, equals=_fewest(*sizes))


def _fewest(rows: int, processors: int, cached: int, least: int) -> int:
    options = range(1, max(1, cached // least) + 1)
    return max(options, key=lambda splits: (busy(rows, processors, splits), -splits))
