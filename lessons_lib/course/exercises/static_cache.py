"""Checkers: room in a static cache, positions of padded prompts, break-even, the gain of compiling."""

import math

import torch

from lessons_lib.course.exercises import Attempt, exercise, expect


@exercise("03.1")
def slots_needed(attempt: Attempt) -> None:
    """All that is ever fed: every turn's input and output, without the very last token."""
    expect(attempt, [(9, 64)], equals=72)
    expect(attempt, [(1, 1)], equals=1)
    expect(attempt, [(6, 16), (5, 16)], equals=42)
    expect(attempt, [(100, 20), (10, 20), (10, 1)], equals=160)


@exercise("03.2")
def positions(attempt: Attempt) -> None:
    """mask.cumsum(-1) - 1, and anything valid where there is padding."""
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
    wanted = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]])

    def masked(mask: torch.Tensor) -> torch.Tensor:
        found = attempt(mask)
        assert found.shape == mask.shape, f"positions has the shape {tuple(found.shape)}, the mask {tuple(mask.shape)}"
        assert found.min() >= 0, "a position is negative: padding needs a valid one, too"
        return found * mask

    masked.__name__ = "positions"
    expect(masked, mask, equals=wanted)


@exercise("03.3")
def break_even(attempt: Attempt) -> None:
    """ceil(compile seconds / gain per token), infinity without a gain."""
    expect(attempt, 60, 0.04, 0.01, equals=2000)
    expect(attempt, 45, 0.05, 0.03, equals=2250)
    expect(attempt, 1, 0.5, 0.2, equals=4)
    expect(attempt, 30, 0.02, 0.03, equals=math.inf)


@exercise("03.4")
def gain(attempt: Attempt) -> None:
    """(host + bytes / B) / (host' + bytes / B)."""
    expect(attempt, 0.0, 1e-3, 0.25e-3, 30e9, equals=4.0)
    expect(attempt, 30e6, 1e-3, 0.25e-3, 30e9, equals=1.6)
    expect(attempt, 300e6, 1e-3, 0.25e-3, 30e9, equals=11 / 10.25)
