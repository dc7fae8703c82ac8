"""Exercises that check themselves: `check("02.1", attempt)` in a lesson, one checker per exercise here.

The checkers of a lesson stand in the file of its topic and are found by the exercise's name:

    @exercise("02.1")
    def bytes_per_token(attempt):
        expect(attempt, 30, 3, 64, 2, equals=23_040)

A checker raises Wrong for an attempt that fails, NotImplementedError for a stub as a lesson has it, so that running all
of its cells passes.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Attempt = Callable[..., Any]
CHECKERS: dict[str, Callable[[Attempt], None]] = {}


class Wrong(AssertionError):
    """An attempt gave something else than the exercise asks for; the message says for which input."""


def exercise(name: str) -> Callable[[Callable[[Attempt], None]], Callable[[Attempt], None]]:
    """Register a checker: a function of the attempt that calls `expect`, or raises AssertionError."""

    def register(checker: Callable[[Attempt], None]) -> Callable[[Attempt], None]:
        CHECKERS[name] = checker
        return checker

    return register


def check(name: str, attempt: Attempt) -> None:
    """Print whether the attempt at exercise `name` passes, and if not, what failed for which input.

    Raises ValueError for an exercise that does not exist, naming those that do.
    """
    checker = _find(name)
    try:
        checker(attempt)
    except NotImplementedError:
        print(f"{name}: not attempted yet")
    except AssertionError as wrong:
        print(f"{name}: not yet. {wrong}")
    else:
        print(f"{name}: passed")


def expect(attempt: Attempt, *args: Any, equals: Any, tolerance: float = 1e-6) -> None:
    """Call attempt(*args) and compare. Raises Wrong if the result differs, or if the attempt raises an error.

    Numbers may differ by `tolerance`, relative; tensors, sequences and mappings are compared element by element.
    """
    call = f"{getattr(attempt, '__name__', 'attempt')}({', '.join(map(_brief, args))})"
    got = called(call, attempt, *args)
    if not same(got, equals, tolerance):
        raise Wrong(f"{call} gave {_brief(got)}; expected {_brief(equals)}.")


def called(call: str, attempt: Attempt, *args: Any) -> Any:
    """attempt(*args). Raises Wrong, which begins with `call`, if that raises an error other than a stub's."""
    try:
        return attempt(*args)
    except Exception as error:
        if isinstance(error, NotImplementedError) and not error.args:  # torch raises it, too, with a message
            raise
        raise Wrong(f"{call} raised {type(error).__name__}: {error}") from error


def same(got: Any, wanted: Any, tolerance: float = 1e-6) -> bool:
    """Equal, numbers within a relative tolerance; tensors and arrays need the same shape, and bools if one has them."""
    if hasattr(wanted, "shape") or hasattr(got, "shape"):
        alike = getattr(got, "shape", ()) == getattr(wanted, "shape", ()) and _holds_bools(got) == _holds_bools(wanted)
        return alike and same(_plain(got), _plain(wanted), tolerance)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        fits = isinstance(got, Sequence) and not isinstance(got, str) and len(got) == len(wanted)
        return fits and all(same(g, w, tolerance) for g, w in zip(got, wanted, strict=True))
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        return got.keys() == wanted.keys() and all(same(got[key], wanted[key], tolerance) for key in wanted)
    if isinstance(wanted, int | float) and isinstance(got, int | float):
        return math.isclose(got, wanted, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
    return got == wanted


def _holds_bools(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).endswith("bool")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _brief(value: Any) -> str:
    """A value as text, cut where it would fill the page."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


def _find(name: str) -> Callable[[Attempt], None]:
    """The checker of an exercise, whose name begins with its lesson's number."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    if name not in CHECKERS:
        lesson = name.partition(".")[0]
        known = ", ".join(sorted(n for n in CHECKERS if n.startswith(f"{lesson}."))) or "none"
        raise ValueError(f"there is no exercise {name!r}; lesson {lesson} has: {known}")
    return CHECKERS[name]
