"""What guessing ahead is worth (lesson 06): tokens per step, wall-time factor, best draft length, break-even.

Leviathan et al. 2022 (arXiv 2211.17192), for chains whose tokens are accepted independently with probability
alpha. Times are in units of a one-row target forward: c is one draft forward, v(w) a target forward of w rows;
v is a function or the measured {width: cost} of `hardware.width_costs`, and 1 for every width where left out;
ValueError for one without any width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

WidthCurve = Mapping[int, float] | Callable[[int], float] | None


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[N]: tokens committed per step, bonus included, (1 - alpha^(gamma+1)) / (1 - alpha). ValueError outside
    0 <= alpha <= 1, gamma >= 0."""
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"0 <= alpha <= 1 and gamma >= 0 are needed, not alpha={alpha} and gamma={gamma}")
    return sum(alpha**i for i in range(gamma + 1))  # the sum itself: alpha = 1 is no special case


def walltime_factor(alpha: float, gamma: int, c: float, v: WidthCurve = None, h: float = 0.0) -> float:
    """W: speed over plain decoding, E[N] / (gamma c + v(gamma + 1) + h); h is the host's overhead per step.

    ValueError as `expected_tokens`.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + width_cost(v)(gamma + 1) + h)


def best_gamma(alpha: float, c: float, v: WidthCurve = None, most: int = 32) -> int:
    """The draft length from 0 to `most` with the highest W; 0 where plain decoding (W = 1) is not beaten.

    ValueError for an alpha outside 0 to 1.
    """
    v = width_cost(v)
    factors = [1.0, *(walltime_factor(alpha, gamma, c, v) for gamma in range(1, most + 1))]
    return factors.index(max(factors))  # of equals the shortest


def break_even(c: float, v: WidthCurve = None, most: int = 32) -> float:
    """The alpha above which some draft length up to `most` gains; inf if none does. c itself where v is 1."""
    v, low, high = width_cost(v), 0.0, 1.0
    if not best_gamma(1.0, c, v, most):
        return math.inf
    for _ in range(50):  # W grows with alpha, so bisection finds the one crossing
        middle = (low + high) / 2
        low, high = (low, middle) if best_gamma(middle, c, v, most) else (middle, high)
    return high


def acceptance_rate(trace: Sequence) -> float:
    """alpha-hat: accepted over examined guesses of a trace of Steps; nan if none was examined.

    Examined are those accepted and the one whose rejection ended a step. The guesses behind it were never looked
    at: accepted over proposed would underestimate alpha.
    """
    accepted = sum(step.accepted for step in trace)
    examined = sum(min(step.committed, step.depth) for step in trace)
    return accepted / examined if examined else math.nan


def width_cost(v: WidthCurve) -> Callable[[int], float]:
    """v as a function: between measured widths a straight line, beyond the last one the last line carried on."""
    if v is None:
        return lambda width: 1.0
    return v if callable(v) else partial(_interpolate, sorted(v.items()))


def padded_cost(v: Mapping[int, float]) -> Callable[[int], float]:
    """v of a target that is compiled for the widths of v alone and pads to the next one; inf beyond the last."""
    return lambda width: min((cost for compiled, cost in v.items() if compiled >= width), default=math.inf)


def _interpolate(points: list[tuple[int, float]], width: int) -> float:
    widths, costs = zip(*points, strict=True)
    if width <= widths[-1] or len(points) == 1:
        return float(np.interp(width, widths, costs))
    return costs[-1] + (width - widths[-1]) * (costs[-1] - costs[-2]) / (widths[-1] - widths[-2])
