"""Formats of weights by name (lesson 10), so that a table of many is a loop over their names.

int2 ... int8   and, after spaces in any order: the group ("row", "tensor", "g32", "g64", ...; without one "row") and
                the kind ("absmax", "zero_point", "minimum"; without one absmax in 8 bits, minimum in fewer)
nf4             groups of 64 unless another is named; "double": scales in 8 bits
fp8             e4m3, or "e5m2"; scales as of integers
"""

import re
from collections.abc import Callable
from functools import partial

from torch import Tensor

from lessons_lib.quantization.checks import ROW, TENSOR, check_bits
from lessons_lib.quantization.floats import FORMATS as FLOATS
from lessons_lib.quantization.floats import quantize_fp8
from lessons_lib.quantization.integers import KINDS, quantize
from lessons_lib.quantization.nf4 import BLOCK, quantize_nf4
from lessons_lib.quantization.quantized import Quantized

Rounding = Callable[[Tensor], Quantized]


def rounding(name: str) -> Rounding:
    """The function that rounds a weight to the format of this name. ValueError for a name that is none."""
    family, _, rest = name.partition(" ")
    words = rest.split()
    per = _only([_group(word) for word in words if _group(word)], name)
    others = [word for word in words if not _group(word)]
    if re.fullmatch(r"int\d+", family) and set(others) <= set(KINDS):
        return _integers(int(family[3:]), per or ROW, _only(others, name))
    if family == "nf4" and set(others) <= {"double"} and not isinstance(per, str):
        return partial(quantize_nf4, block=per or BLOCK, double=bool(_only(others, name)))
    if family == "fp8" and set(others) <= set(FLOATS):
        return partial(quantize_fp8, format=_only(others, name) or "e4m3", per=per or ROW)
    raise ValueError(f"{name!r} is no format; write it like 'int8', 'int4 g32', 'int3 g64 absmax', 'nf4 double', 'fp8'")


def integers(name: str) -> dict[str, int | str] | None:
    """bits, per and kind of a format of integers, as `quantize` and `gptq` take them; None for other formats.

    ValueError for a name that is none.
    """
    found = rounding(name)
    return dict(found.keywords) if found.func is quantize else None


def _integers(bits: int, per: str | int, kind: str | None) -> Rounding:
    check_bits(bits)
    return partial(quantize, bits=bits, per=per, kind=kind or ("absmax" if bits == 8 else "minimum"))


def _group(word: str) -> str | int | None:
    if word in (ROW, TENSOR):
        return word
    return int(word[1:]) if re.fullmatch(r"g\d+", word) else None


def _only(found: list, name: str):
    if len(found) > 1:
        raise ValueError(f"{name!r} names {' and '.join(map(str, found))}; choose one of them")
    return found[0] if found else None
