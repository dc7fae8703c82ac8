"""Checkers: rounds to a fixed point, prefix acceptance, the window's mask, and settings that pay."""

import torch

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.decoding.proposers.lookahead import window_layout


def times_three(text):
    """The lesson's toy: next = 3 last + 1, modulo 7."""
    return (3 * text[-1] + 1) % 7


def by_position(text):
    """A rule that does not look at the tokens."""
    return len(text) % 5


@exercise("08.1")
def rounds_needed(attempt):
    """Forward passes until a round changes nothing, the one that shows it included."""
    expect(attempt, times_three, [2], [0, 0, 0, 0], equals=4)
    expect(attempt, times_three, [2], [5, 5, 5, 5], equals=5)
    expect(attempt, times_three, [2], [0, 1, 4, 6], equals=1)
    expect(attempt, by_position, [3, 3], [0, 0, 0, 0], equals=2)


@exercise("08.2")
def commit_and_keep(attempt):
    """The outputs up to and including the first that the guess did not predict, and the outputs behind it."""
    expect(attempt, [7, 8, 9], [7, 8, 1, 2], equals=([7, 8, 1], [2]))
    expect(attempt, [7, 8, 9], [1, 8, 9, 2], equals=([1], [8, 9, 2]))
    expect(attempt, [7, 8, 9], [7, 8, 9, 2], equals=([7, 8, 9, 2], []))
    expect(attempt, [], [4], equals=([4], []))


@exercise("08.3")
def window_mask(attempt):
    """(W(N-1), W(N-1)) bool with the root first: row 0 up to the column, then the column itself."""
    for W, N in [(5, 4), (2, 3), (1, 5), (4, 3)]:
        size = W * (N - 1)
        mask = torch.zeros(size, size, dtype=torch.bool)
        mask[:, 0] = True  # everybody sees the root
        mask[1:, 1:] = torch.tensor(window_layout(W, N)[1], dtype=torch.bool).view(size - 1, size - 1)
        expect(attempt, W, N, equals=mask)


@exercise("08.4")
def best_setting(attempt):
    """The (W, N, G) with the highest tokens / v(width); None if none gains."""
    counted = {(3, 3, 3): 1.3, (5, 4, 5): 1.6, (7, 5, 7): 1.9}
    expect(attempt, counted, lambda w: 1.0, equals=(7, 5, 7))
    expect(attempt, counted, lambda w: 1 + w / 100, equals=(5, 4, 5))
    expect(attempt, counted, lambda w: 1 + w / 60, equals=(3, 3, 3))
    expect(attempt, counted, lambda w: 1 + w / 12, equals=None)
    expect(attempt, {(1, 3, 1): 1.1}, lambda w: 1.1, equals=None)
