"""Checkers: weights that matter, a threshold, what no row needs, and the limit with the gate first."""

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.sparsity import skippable, speedup


@exercise("12.1")
def fewest(attempt):
    """k: how many of the largest weights hold the mass."""
    expect(attempt, [0.5, 0.25, 0.125, 0.125], 0.75, equals=2)
    expect(attempt, [0.125, 0.125, 0.25, 0.5], 0.75, equals=2)
    expect(attempt, [0.25] * 4, 0.7, equals=3)
    expect(attempt, [0.0, 1.0, 0.0], 0.99, equals=1)
    expect(attempt, [0.5, 0.5], 1.0, equals=2)
    expect(attempt, [0.1] * 10, 1.0, equals=10)  # their sum in floating point is less than 1


@exercise("12.2")
def cut_at(attempt):
    """t: the smallest size such that the share asked for is at most t."""
    expect(attempt, [4.0, -1.0, 3.0, -2.0], 0.5, equals=2.0)
    expect(attempt, [4.0, -1.0, 3.0, -2.0], 0.75, equals=3.0)
    expect(attempt, [-5.0, 0.5, 0.25, -0.125], 0.25, equals=0.125)
    expect(attempt, [1.0, 2.0], 0.0, equals=0.0)


@exercise("12.3")
def unread(attempt):
    """Share of the neurons that no row needs."""
    expect(attempt, [[True, False, False, False]], equals=0.75)
    expect(attempt, [[True, False, False, False], [True, False, False, True]], equals=0.5)
    expect(attempt, [[True, False], [False, True]], equals=0.0)
    expect(attempt, [[False, False, False]] * 3, equals=1.0)


@exercise("12.4")
def gate_first_limit(attempt):
    """Most that a step gains if the gates are read whole, and of W_up and W_down only what is active."""
    for name in ("smollm2-135m", "llama-2-7b", "mistral-7b-v0.1"):
        shape = CONFIGS[name]
        for sparsity in (0.5, 0.9):
            expected = speedup(skippable(shape, "gate first"), sparsity)
            expect(
                attempt,
                shape.num_layers,
                shape.hidden_size,
                shape.intermediate_size,
                shape.weights,
                sparsity,
                equals=expected,
            )
