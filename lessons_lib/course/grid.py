"""A grid of parameters over lessons, as points: one lesson with one choice of values each.

`gamma=2,4,8 model=smollm2-135m` gives three points of a lesson that has gamma, and one of a lesson that does not.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lessons_lib
from lessons_lib.course.lessons import Lesson, UsageError, overrides, parameters, select
from lessons_lib.course.runner import absolute

COMMA = re.compile(r",(?![^\[(]*[\])])")  # but none inside brackets: prompt_lengths=[16,64],[128,256] are two lists


@dataclass(frozen=True)
class Point:
    """One lesson with the values that are put into its parameters. package: fingerprint of lessons_lib."""

    lesson: Lesson
    values: dict[str, Any]
    defaults: dict[str, Any]
    package: str

    @cached_property
    def key(self) -> str:
        """Changes with the lesson's code, its parameters or the package, and so names what a result is of."""
        code = [cell.source for cell in self.lesson.read().cells if cell.cell_type == "code"]
        content = [self.lesson.name, code, self.taken, self.package]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def taken(self) -> dict[str, Any]:
        """All parameters, given or not."""
        return self.defaults | self.values

    @property
    def name(self) -> str:
        """What a person is told: 06_assisted_decoding gamma=2."""
        return " ".join([self.lesson.name, *(f"{name}={value}" for name, value in self.values.items())])


def points(lessons: list[Lesson], asked: list[str], grid: dict[str, str], fixed: dict[str, str]) -> list[Point]:
    """Every lesson asked for with every combination of the grid's values that makes a difference to it.

    grid: name -> values with commas between them; fixed: name -> one value. Without a lesson asked for, those that have
    a parameter of the grid. UsageError names what does not exist, with what does.
    """
    twice = sorted(grid.keys() & fixed.keys())
    if twice:
        raise UsageError(f"Give {', '.join(twice)} in the grid or beside it, not in both.")
    chosen = select(lessons, asked)
    defaults = {lesson: parameters(lesson) for lesson in chosen}
    combined = [overrides(defaults, absolute(fixed | values)) for values in combinations(grid)]
    of_grid = [lesson for lesson in chosen if asked or grid.keys() & defaults[lesson].keys()]
    found = [Point(lesson, values[lesson], defaults[lesson], package()) for lesson in of_grid for values in combined]
    return list({point.key: point for point in found}.values())


def combinations(grid: dict[str, str]) -> list[dict[str, str]]:
    """{"a": "1,2", "b": "x"} -> [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}]. UsageError for one without a value."""
    values = {name: [value.strip() for value in COMMA.split(text)] for name, text in grid.items()}
    empty = [name for name, found in values.items() if not all(found)]
    if empty:
        raise UsageError(f"Parameter {', '.join(empty)} of the grid lacks a value: write gamma=2,4,8.")
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


@cache
def package() -> str:
    """A fingerprint (12 hex digits) of lessons_lib as it is installed, and of the libraries that it computes with."""
    folder, digest = Path(lessons_lib.__file__).parent, hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(" ".join(version(name) for name in ("torch", "transformers")).encode())
    return digest.hexdigest()[:12]
