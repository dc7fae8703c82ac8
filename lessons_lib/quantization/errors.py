"""What rounding does to values (lesson 10): there and back in any format, how far off that is, and what it costs."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.quantization.formats import rounding

ROWS = 256  # of a matrix whose bits are counted: as many as fill all blocks of scales


def round_trip(x: Tensor, name: str) -> Tensor:
    """x (..., K) rounded to the format of this name and back. ValueError as `rounding` and the format have it."""
    return rounding(name)(x).dequantize()


def bits_of(name: str, columns: int) -> float:
    """Bits a weight of a format in rows of so many columns, its share of scales and minima included.

    ValueError for a name that is no format, and for groups that do not divide the columns.
    """
    return rounding(name)(torch.zeros(ROWS, columns)).bits_per_weight


def relative_error(x: Tensor, rounded: Tensor) -> float:
    """Length of the error over the length of x, both of one shape: 0.01 is an error of 1%."""
    return float((rounded - x).norm() / x.norm())


def decibels(x: Tensor, rounded: Tensor) -> float:
    """Signal over noise, 10 log10(sum of x² over sum of error²): 6 dB more halve the error. Infinite without error."""
    noise = (rounded - x).double().square().sum()
    return float(10 * torch.log10(x.double().square().sum() / noise))


def draws(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Values (count,) of laws with ever heavier tails, by name."""
    random = torch.Generator().manual_seed(seed)
    normal = torch.randn(count, generator=random)
    loud = torch.rand(count, generator=random) < 1e-3
    sign = torch.rand(count, generator=random).sub(0.5).sign()
    chi = torch.randn(3, count, generator=random).square().sum(0) / 3
    makers: dict[str, Callable[[], Tensor]] = {
        "uniform": lambda: 2 * torch.rand(count, generator=random) - 1,
        "normal": lambda: normal,
        "Laplace": lambda: sign * -torch.rand(count, generator=random).clamp_min(1e-12).log(),
        "normal, 0.1% of it x20": lambda: torch.where(loud, 20 * normal, normal),
        "Student's t, 3 degrees": lambda: normal / chi.sqrt(),
    }
    return {name: make() for name, make in makers.items()}
