"""Formats by name (lesson 10), such as "int4 g32" or "nf4 double": rounding to them, their size, their errors."""

import re
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from lessons_lib.quantization.floats import BLOCK, FORMATS, quantize_fp8, quantize_nf4
from lessons_lib.quantization.integers import KINDS, ROW, TENSOR, Quantized, check_bits, quantize

Rounding = Callable[[Tensor], Quantized]


def rounding(name: str) -> Rounding:
    """The function that rounds a weight to the format of this name."""
    family, _, rest = name.partition(" ")
    words = rest.split()
    per = _only([_group(word) for word in words if _group(word)], name)
    others = [word for word in words if not _group(word)]
    if re.fullmatch(r"int\d+", family) and set(others) <= set(KINDS):
        bits = int(family[3:])
        check_bits(bits)
        kind = _only(others, name) or ("absmax" if bits == 8 else "affine")
        return partial(quantize, bits=bits, per=per or ROW, kind=kind)
    if family == "nf4" and set(others) <= {"double"} and not isinstance(per, str):
        return partial(quantize_nf4, block=per or BLOCK, double=bool(_only(others, name)))
    if family == "fp8" and set(others) <= set(FORMATS):
        return partial(quantize_fp8, format=_only(others, name) or "e4m3", per=per or ROW)
    raise ValueError(f"{name!r} is no format; write it like 'int8', 'int4 g32', 'int3 g64 absmax', 'nf4 double', 'fp8'")


def integers(name: str) -> dict[str, int | str] | None:
    """bits, per and kind of an integer format, as arguments of `quantize` and `gptq`; None for other formats."""
    found = rounding(name)
    return dict(found.keywords) if found.func is quantize else None


def _group(word: str) -> str | int | None:
    if word in (ROW, TENSOR):
        return word
    return int(word[1:]) if re.fullmatch(r"g\d+", word) else None


def _only(found: list, name: str):
    if len(found) > 1:
        raise ValueError(f"{name!r} names {' and '.join(map(str, found))}; choose one of them")
    return found[0] if found else None


ROWS = 256  # rows of the matrix that `bits_of` quantizes: enough to fill whole blocks of double-quantized scales
UNROUNDED = {"fp32": 32.0, "bf16": 16.0}  # bits of a weight


def round_trip(x: Tensor, name: str) -> Tensor:
    """x (..., K) rounded to the format of this name and dequantized."""
    return rounding(name)(x).dequantize()


@cache
def bits_of(name: str, columns: int) -> float:
    """Bits per weight of a format, or of "fp32" or "bf16": rows of `columns` weights, with their scales and minima."""
    if name in UNROUNDED:
        return UNROUNDED[name]
    return rounding(name)(torch.zeros(ROWS, columns)).bits_per_weight


def relative_error(x: Tensor, rounded: Tensor) -> float:
    """Norm of the error / norm of x, for two tensors of one shape: 0.01 is an error of 1%."""
    return float((rounded - x).norm() / x.norm())


def decibels(x: Tensor, rounded: Tensor) -> float:
    """Signal-to-noise ratio, 10 log10(Σ x² / Σ error²): 6 dB more halve the error. Infinite without error."""
    noise = (rounded - x).double().square().sum()
    return float(10 * torch.log10(x.double().square().sum() / noise))


def draws(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Samples (count,) of distributions with increasingly heavy tails, by name."""
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
