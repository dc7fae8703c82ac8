"""The lessons as files: finding them, choosing some, and setting their parameters."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill

from lessons_lib.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
CLAIMS = ROOT / "bench" / "results" / "claims.json"
NAME = re.compile(r"\d\dx?_.+")
SETUP_ID = "colab-setup"  # tag of the first code cell, which installs lessons_lib where it is missing
QUIET = ["--log-level=50"]  # for kernels, which announce their transport and their end on stderr


class UsageError(Exception):
    """An unknown lesson, parameter or model, or an invalid value; the message lists the valid ones."""


@dataclass(frozen=True)
class Lesson:
    """One numbered notebook, such as notebooks/02_kv_cache.ipynb: its name is 02_kv_cache, its number 02.

    Material beyond the lesson may stand in an appendix, 02x_name, which is run, tested and listed after it.
    """

    path: Path

    @property
    def name(self) -> str:
        """Number and short name: 02_kv_cache."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The two leading digits, with an x for an appendix: 02, 02x."""
        return self.name.partition("_")[0]

    def read(self) -> nbformat.NotebookNode:
        """Read the notebook file in nbformat 4."""
        return nbformat.read(self.path, as_version=4)


def find(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons of a folder in the order of their numbers, an appendix after its lesson."""
    return [Lesson(path) for path in sorted(folder.glob("*.ipynb")) if NAME.fullmatch(path.stem)]


def select(lessons: list[Lesson], asked: list[str]) -> list[Lesson]:
    """Choose lessons by number (02), name (02_kv_cache) or short name (kv_cache), in course order; no words: all.

    A number selects the lesson without its appendix, 02x the appendix. Raises UsageError for an unknown word.
    """
    keys = {}
    for lesson in lessons:
        keys |= dict.fromkeys((lesson.number, lesson.name, lesson.name.partition("_")[2]), lesson)
    unknown = [word for word in asked if word not in keys]
    if unknown:
        valid = ", ".join(lesson.name for lesson in lessons)
        raise UsageError(f"No lesson {', '.join(unknown)}. The lessons are: {valid}.")
    return [lesson for lesson in lessons if not asked or lesson in [keys[word] for word in asked]]


def parameters(lesson: Lesson) -> dict[str, Any]:
    """A lesson's parameters and their defaults, as papermill reads them from the cell tagged `parameters`.

    Raises UsageError for a value that is not a literal.
    """
    found = papermill.inspect_notebook(escaped(lesson.path)).values()
    try:
        return {parameter["name"]: ast.literal_eval(parameter["default"]) for parameter in found}
    except (ValueError, SyntaxError) as error:
        raise UsageError(f"{lesson.name} has a parameter whose value is no literal: {error}.") from None


def escaped(path: Path) -> str:
    """The path for papermill, which takes single braces in it for parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


def settings(pairs: list[str]) -> dict[str, str]:
    """Parse settings: ["a=1", "b=x y"] -> {"a": "1", "b": "x y"}. Raises UsageError without an equals sign."""
    broken = [pair for pair in pairs if "=" not in pair]
    if broken:
        raise UsageError(f"A parameter is given as NAME=VALUE; {shlex.join(broken)} is not.")
    return dict(pair.split("=", 1) for pair in pairs)


def overrides(defaults: dict[Lesson, dict[str, Any]], given: dict[str, str]) -> dict[Lesson, dict[str, Any]]:
    """The parameters to inject into each lesson: those of `given` that it has, parsed by the type of its default.

    Raises UsageError for a name that no lesson has and for a value of another type. Ranges are checked by the lesson.
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
    """Parse a parameter's value by the type of its default: "32", 64 -> 32; "32", "auto" -> "32"."""
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if default is None or type(value) is type(default) or (type(default) is float and type(value) is int):
        return value
    raise UsageError(f"Parameter {name} takes a {type(default).__name__}, such as {default!r}; not {text!r}.")
