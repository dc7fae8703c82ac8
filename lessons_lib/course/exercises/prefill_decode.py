"""Checkers: tokens fed, sampling, and the batch that a price asks for."""

import math

from lessons_lib.course.exercises import Attempt, exercise, expect


@exercise("01.1")
def fed_tokens(attempt: Attempt) -> None:
    """P + n - 1 with a cache, n·P + n(n-1)/2 without."""
    expect(attempt, 5, 4, True, equals=8)
    expect(attempt, 5, 4, False, equals=26)
    expect(attempt, 512, 1, True, equals=512)
    expect(attempt, 512, 1, False, equals=512)


@exercise("01.2")
def next_token_probabilities(attempt: Attempt) -> None:
    """softmax(logits / temperature) over the top_k largest."""
    e = math.e
    expect(attempt, [2.0, 1.0, 0.0, -1.0], 1.0, 2, equals=[e / (e + 1), 1 / (e + 1), 0.0, 0.0])
    expect(attempt, [0.0, 1.0], 0.5, 2, equals=[1 / (1 + e * e), e * e / (1 + e * e)])
    expect(attempt, [3.0, 7.0, 5.0], 1.0, 1, equals=[0.0, 1.0, 0.0])
    expect(attempt, [1000.0, 1000.0], 1.0, 2, equals=[0.5, 0.5])


@exercise("01.3")
def batch_for_price(attempt: Attempt) -> None:
    """Smallest b with (step + b·extra)/b <= ratio·token; None if extra alone is too expensive."""
    expect(attempt, 32.0, 1.0, 2.0, 2, equals=11)
    expect(attempt, 30.0, 1.0, 2.0, 3, equals=6)
    expect(attempt, 1.0, 0.0, 1.0, 1, equals=1)
    expect(attempt, 30.0, 4.0, 2.0, 2, equals=None)
