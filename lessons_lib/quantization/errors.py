"""What rounding does to values (lesson 10): there and back in any format, how far off that is, and what it costs.

Integers are not packed on the way, so that many formats can be tried one after another.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.quantization.checks import ROW, blocks, check_values
from lessons_lib.quantization.floats import FORMATS, quantize_fp8
from lessons_lib.quantization.integers import KINDS, fit_grid, working_dtype
from lessons_lib.quantization.nf4 import quantize_nf4

FIXED = {"nf4": 4, **dict.fromkeys(FORMATS, 8)}  # formats of one width
NAMES = (*KINDS, *FIXED)
EXTRA = {"absmax": 16, "zero_point": 24, "minimum": 32}  # bits of a group's scale, and of its zero point or minimum


def round_trip(x: Tensor, format: str = "absmax", bits: int = 8, per: str | int = ROW) -> Tensor:
    """x (..., K) rounded to a format of NAMES and back, in x's dtype. bits: of the integers. per: as in `quantize`.

    NF4 quantizes its scales, too. Raises ValueError for unknown formats and whatever the format itself refuses.
    """
    if format in FORMATS:
        return quantize_fp8(x, format, per).dequantize()
    if format == "nf4":
        return quantize_nf4(x, x.shape[-1] if per == ROW else per).dequantize()
    if format not in KINDS:
        raise ValueError(f"there is no format {format!r}; choose one of {', '.join(NAMES)}")
    check_values(x)
    values = blocks(x.detach().to(working_dtype(x.dtype)), per)
    grid = fit_grid(values, bits, format)
    return grid.decode(grid.encode(values), values.dtype).view(x.shape).to(x.dtype)


def bits_of(format: str, bits: int, columns: int, per: str | int = ROW) -> float:
    """Bits a weight in rows of so many columns: the code's and its share of the group's scale and minimum."""
    size = columns if per == ROW else per
    if format == "nf4":
        return 4 + (8 + 32 / 256) / size
    return FIXED.get(format, bits) + EXTRA.get(format, 32) / size


def relative_error(x: Tensor, rounded: Tensor) -> float:
    """Length of the error over the length of x: 0.01 is an error of 1%."""
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
