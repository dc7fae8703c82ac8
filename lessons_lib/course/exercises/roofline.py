"""Checkers: limits, the ridge point and the three regimes."""

from lessons_lib.course.exercises import Attempt, exercise, expect


@exercise("00.1")
def decode_limit(attempt: Attempt) -> None:
    """tokens/s = bandwidth / (weights * bits / 8)."""
    expect(attempt, 1_000, 8, 1_000_000, equals=1_000)
    expect(attempt, 134_479_872, 16, 33e9, equals=33e9 / 268_959_744)
    expect(attempt, 6_607_077_376, 4, 2.04e12, equals=2.04e12 / 3_303_538_688)


@exercise("00.2")
def tokens_to_ridge(attempt: Attempt) -> None:
    """ridge * weight_bytes / 2."""
    expect(attempt, 10, 2, equals=10)
    expect(attempt, 10, 4, equals=20)
    expect(attempt, 153, 0.625, equals=47.8125)


@exercise("00.3")
def regime(attempt: Attempt) -> None:
    """Overhead beyond twice the bracket's upper end, else the longer of the two."""
    expect(attempt, 10, 20, 40, 10, 2.1, equals="memory")
    expect(attempt, 400, 20, 40, 10, 11.0, equals="compute")
    expect(attempt, 10, 20, 40, 10, 4.6, equals="overhead")
    expect(attempt, 400, 20, 40, 10, 23.9, equals="compute")
