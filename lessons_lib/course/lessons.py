"""The lessons as files: finding, choosing, and reading or overriding their parameters."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from lessons_lib.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
NAME = re.compile(r"\d\dx?_.+")
LEAST = re.compile(r"^(\w+) *(?::[^=#]*)?=.*#.*\bat least (\d+)", re.MULTILINE)
QUIET = ["--log-level=50"]  # for kernels, which announce their transport and their end on stderr


class UsageError(Exception):
    """What was asked for does not exist; the message lists what does."""


@dataclass(frozen=True)
class Lesson:
    """One numbered notebook, such as notebooks/02_kv_cache.ipynb: its name is 02_kv_cache, its number 02.

    What a lesson has no room for may stand in an appendix, 02x_name, which is run, tested and listed after it.
    """

    path: Path

    @property
    def name(self) -> str:
        """Number and short name: 02_kv_cache."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The two digits that it begins with, for an appendix with an x: 02, 02x."""
        return self.name.partition("_")[0]

    def read(self) -> nbformat.NotebookNode:
        """The notebook as it lies in the file, in nbformat 4."""
        return nbformat.read(self.path, as_version=4)


def find(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons of a folder in the order of their numbers, an appendix after its lesson."""
    return [Lesson(path) for path in sorted(folder.glob("*.ipynb")) if NAME.fullmatch(path.stem)]


def select(lessons: list[Lesson], asked: list[str]) -> list[Lesson]:
    """The lessons asked for by number (02), name (02_kv_cache) or short name (kv_cache), in course order; else all.

    A lesson's number asks for the lesson alone, 02x for its appendix.
    UsageError for a word that is none of them, with those there are.
    """
    keys = {}
    for lesson in reversed(lessons):  # where an appendix has its lesson's short name, that means the lesson
        keys |= dict.fromkeys((lesson.number, lesson.name, lesson.name.partition("_")[2]), lesson)
    unknown = [word for word in asked if word not in keys]
    if unknown:
        valid = ", ".join(lesson.name for lesson in lessons)
        raise UsageError(f"No lesson {', '.join(unknown)}. The lessons are: {valid}.")
    return [lesson for lesson in lessons if not asked or lesson in [keys[word] for word in asked]]


def tagged(nb: nbformat.NotebookNode, tag: str) -> list[nbformat.NotebookNode]:
    """The code cells with a tag."""
    return [c for c in nb.cells if c.cell_type == "code" and tag in c.metadata.get("tags", [])]


def parameters(nb: nbformat.NotebookNode) -> dict[str, Any]:
    """Names and default values from the cell tagged `parameters`: lines `gamma = 4` or `gamma: int = 4`.

    UsageError unless there is one such cell, and for any other line or a value that is no literal.
    """
    cells = tagged(nb, "parameters")
    if len(cells) != 1:
        raise UsageError(f"A lesson has exactly one cell tagged `parameters`; here are {len(cells)}.")
    values = {}
    for line in ast.parse(cells[0].source).body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                raise UsageError(f"The parameters cell holds lines `name = value` only, not `{ast.unparse(line)}`.")
        try:
            values[name] = ast.literal_eval(value)
        except ValueError:
            raise UsageError(f"A parameter's value is a literal, unlike `{ast.unparse(line)}`.") from None
    return values


def bounds(nb: nbformat.NotebookNode) -> dict[str, int]:
    """The least value, of a list the least length, of each parameter whose comment says "at least 2"."""
    return {name: int(least) for name, least in LEAST.findall("\n".join(c.source for c in tagged(nb, "parameters")))}


def settings(pairs: list[str]) -> dict[str, str]:
    """["a=1", "b=x y"] -> {"a": "1", "b": "x y"}. UsageError for one without an equals sign."""
    broken = [pair for pair in pairs if "=" not in pair]
    if broken:
        raise UsageError(f"A parameter is given as NAME=VALUE; {shlex.join(broken)} is not.")
    return dict(pair.split("=", 1) for pair in pairs)


def overrides(defaults: dict[Lesson, dict[str, Any]], given: dict[str, str]) -> dict[Lesson, dict[str, Any]]:
    """What to inject into each lesson: of `given`, the parameters that it has, read as its default's type.

    UsageError for a name that none of the lessons has, listing the valid ones, and as `parse`.
    """
    valid = sorted({name for values in defaults.values() for name in values})
    unknown = [name for name in given if name not in valid]
    if unknown:
        raise UsageError(f"No parameter {', '.join(unknown)}. The chosen lessons have: {', '.join(valid)}.")
    found = {}
    for lesson, values in defaults.items():
        least = bounds(lesson.read())
        wanted = [name for name in given if name in values]
        found[lesson] = {name: parse(name, given[name], values[name], least.get(name)) for name in wanted}
    return found


def parse(name: str, text: str, default: Any, least: int | None = None) -> Any:
    """The value that `text` means for a parameter with this default: "32", 64 -> 32; "32", "auto" -> "32".

    least: of a number, or of a list's length; without it, numbers that count from 1 on by default stay so. UsageError
    for less, and for another type.
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
    check_size(name, value, default, least)
    return value


def check_size(name: str, value: Any, default: Any, least: int | None) -> None:
    """UsageError for a number, or a list, that is smaller than `parse` allows, and for a number below 1 in a list."""
    given, usual = (x if isinstance(x, list) else [x] for x in (value, default))
    size, what = (len(given), f"{least} of them") if isinstance(value, list) else (value, f"{least}")
    if least is not None and size < least:
        raise UsageError(f"Parameter {name} takes at least {what}, such as {default!r}; not {value!r}.")
    if _counts(usual) and any(type(x) is int and x < 1 for x in given):
        raise UsageError(f"Parameter {name} counts from 1 on, such as {default!r}; it cannot be {value!r}.")


def _counts(values: list) -> bool:
    return all(type(x) is int and x >= 1 for x in values)
