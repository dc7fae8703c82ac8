"""The lessons as files: finding, choosing, and reading or overriding their parameters."""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from lessons_lib.course.bootstrap import ROOT

NOTEBOOKS = ROOT / "notebooks"
QUIET = ["--log-level=50"]  # for kernels, which announce their transport and their end on stderr


class UsageError(Exception):
    """What was asked for does not exist; the message lists what does."""


@dataclass(frozen=True)
class Lesson:
    """One numbered notebook, such as notebooks/02_kv_cache.ipynb: its name is 02_kv_cache, its number 02."""

    path: Path

    @property
    def name(self) -> str:
        """Number and short name: 02_kv_cache."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The two digits that it begins with: 02."""
        return self.name.partition("_")[0]

    def read(self) -> nbformat.NotebookNode:
        """The notebook as it lies in the file, in nbformat 4."""
        return nbformat.read(self.path, as_version=4)


def find(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons of a folder in the order of their numbers."""
    return [Lesson(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]


def select(lessons: list[Lesson], asked: list[str]) -> list[Lesson]:
    """The lessons asked for by number (02), name (02_kv_cache) or short name (kv_cache), in course order.

    UsageError for a word that is none of them, with those there are.
    """
    keys = {key: lesson for lesson in lessons for key in (lesson.number, lesson.name, lesson.name.partition("_")[2])}
    unknown = [word for word in asked if word not in keys]
    if unknown:
        valid = ", ".join(lesson.name for lesson in lessons)
        raise UsageError(f"No lesson {', '.join(unknown)}. The lessons are: {valid}.")
    return [lesson for lesson in lessons if not asked or lesson in [keys[word] for word in asked]]


def tagged(nb: nbformat.NotebookNode, tag: str) -> list[nbformat.NotebookNode]:
    """The code cells with a tag."""
    return [c for c in nb.cells if c.cell_type == "code" and tag in c.metadata.get("tags", [])]


def parameters(nb: nbformat.NotebookNode) -> dict[str, Any]:
    """Names and default values from the cell tagged `parameters`, which holds literals only: UsageError if not."""
    cells = tagged(nb, "parameters")
    if len(cells) != 1:
        raise UsageError(f"A lesson has exactly one cell tagged `parameters`; here are {len(cells)}.")
    values = {}
    for line in ast.parse(cells[0].source).body:
        if not (isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)):
            raise UsageError(f"The parameters cell holds assignments only, not `{ast.unparse(line)}`.")
        try:
            values[line.targets[0].id] = ast.literal_eval(line.value)
        except ValueError:
            raise UsageError(f"A parameter's value is a literal, unlike `{ast.unparse(line)}`.") from None
    return values


def settings(pairs: list[str]) -> dict[str, str]:
    """["a=1", "b=x y"] -> {"a": "1", "b": "x y"}. UsageError for one without an equals sign."""
    broken = [pair for pair in pairs if "=" not in pair]
    if broken:
        raise UsageError(f"A parameter is given as NAME=VALUE; {shlex.join(broken)} is not.")
    return dict(pair.split("=", 1) for pair in pairs)


def overrides(defaults: dict[Lesson, dict[str, Any]], given: dict[str, str]) -> dict[Lesson, dict[str, Any]]:
    """What to inject into each lesson: of `given`, the parameters that it has, read as its default's type.

    UsageError for a name that none of the lessons has, listing the valid ones, and for a value of another type.
    """
    valid = sorted({name for values in defaults.values() for name in values})
    unknown = [name for name in given if name not in valid]
    if unknown:
        raise UsageError(f"No parameter {', '.join(unknown)}. The chosen lessons have: {', '.join(valid)}.")
    return {
        lesson: {name: parse(name, text, values[name]) for name, text in given.items() if name in values}
        for lesson, values in defaults.items()
    }


def parse(name: str, text: str, default: Any) -> Any:
    """The value that `text` means for a parameter with this default: "32", 64 -> 32; "32", "auto" -> "32".

    UsageError if it is of another type.
    """
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    fits = default is None or type(value) is type(default) or (type(default) is float and type(value) is int)
    if not fits:
        kind = type(default).__name__
        raise UsageError(f"Parameter {name} takes a {kind}, such as {default!r}; not {text!r}.")
    return value
