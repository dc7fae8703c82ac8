"""What was tried to make a compiled step faster, measured again: `python bench/overheads.py`, for lesson 11's log.

Each change is timed in turn with what it replaces, on the first layers of the model with its whole head, or alone.
Kept or not stands in the code; this says what it is worth on this machine.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from unittest import mock

import asking
import torch
from asking import prompt_of
from run import RESULTS

from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, compiler
from lessons_lib.measure import machine
from lessons_lib.measure.clock import in_turn
from lessons_lib.models import cut
from lessons_lib.models.quantized import quantized
from lessons_lib.progress import say

LAYERS, TEXT, LONGEST, ROWS, REPEATS = 6, 200, 672, 5, 60
Calls = tuple[Callable, Callable]  # before, behind


def main() -> int:
    rows = []
    for what, (kept, calls) in tried().items():
        say(f"{what} ...")
        before, behind = calls()
        found = in_turn({"before": before, "behind": behind}, repeats=REPEATS)
        times = {name: samples.median for name, samples in found.items()}
        rows.append({"what": what, "kept": kept} | times | {"samples": {name: of.times for name, of in found.items()}})
    facts = {"layers": LAYERS, "host": machine.host(), "versions": machine.versions(), "dtype": asking.DTYPE}
    path = RESULTS / "ladder-overheads.json"
    path.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def tried() -> dict[str, tuple[bool, Callable[[], Calls]]]:
    """What -> whether it was kept, and how to make both calls."""
    return {
        f"caches fitted to a text of {TEXT} tokens instead of {LONGEST} slots, one row": (True, slots),
        f"{ROWS} rows as sums that share one reading, instead of the library's products": (True, sums),
        "weights of 8 bits instead of the model's own, one row": (True, eight_bits),
        f"weights of 8 bits, {ROWS} rows": (True, partial(eight_bits, ROWS)),
        "weights of 4 bits instead of 8, one row": (False, four_bits),
        "guards left out behind the first call": (True, guards),
        "a wrapper in C++ around the kernels instead of Python": (False, partial(setting, cpp_wrapper=True)),
        "buffers in one pool that is planned ahead": (False, partial(setting, memory_planning=True)),
        "the token chosen by max instead of argmax": (True, choosing),
        "logits not copied to hold back the end of the text": (False, holding_back),
    }


def small():
    return cut(asking.model(), LAYERS).target().decoder


def step(decoder, rows: int = 1, context: int = LONGEST, fitted: bool = True, **options) -> Callable[[], None]:
    """A compiled step, called once."""
    call = repeatable_step(
        CompiledTarget(decoder, None, (), context, (rows,), fitted=fitted, **options), prompt_of(TEXT), rows
    )
    call()
    return call


def slots() -> Calls:
    return step(small(), fitted=False), step(small())


def sums() -> Calls:
    return step(small(), ROWS, products="library"), step(small(), ROWS)


def eight_bits(rows: int = 1) -> Calls:
    return step(small(), rows), step(quantized(small(), "int8-weight-only"), rows)


def four_bits() -> Calls:
    return step(quantized(small(), "int8-weight-only")), step(quantized(small(), "int4"))


def setting(**changed) -> Calls:
    """The compiler with other settings."""
    usual = step(small())
    with mock.patch.dict(compiler.ALWAYS, changed):
        return usual, step(small())


def guards() -> Calls:
    call = step(small())

    def with_guards() -> None:
        with mock.patch.object(torch.compiler, "set_stance", lambda *given, **options: torch.no_grad()):
            call()

    return with_guards, call


def choosing() -> Calls:
    logits = torch.randn(1, asking.model().shape.vocab_size)
    return lambda: logits.argmax(-1).tolist(), lambda: logits.max(-1).indices.tolist()


def holding_back() -> Calls:
    logits = torch.randn(1, asking.model().shape.vocab_size)
    return lambda: logits.clone().max(-1).indices.tolist(), lambda: logits.max(-1).indices.tolist()


if __name__ == "__main__":
    sys.exit(main())
