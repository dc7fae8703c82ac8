"""The library's reference: a page per room from its modules' docstrings, and one that leads to them."""

from __future__ import annotations

import functools
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path

import lessons_lib

INDEX = """Library reference
=================

.. automodule:: lessons_lib
   :no-members:

.. toctree::
   :hidden:

{pages}
"""


@functools.cache
def modules() -> tuple[str, ...]:
    """Full names of all modules of the library in alphabetical order, without those that are run."""
    found = pkgutil.walk_packages(lessons_lib.__path__, "lessons_lib.")
    return tuple(sorted(info.name for info in found if not info.name.endswith("__main__")))


def rooms() -> list[str]:
    """The package's rooms and small modules, as its own table of contents has them; what it lacks comes last."""
    found = {name.split(".")[1] for name in modules()}
    contents = lessons_lib.__doc__
    return sorted(found, key=lambda room: (contents.find(f"\n{room} ") % len(contents), room))


def write(folder: Path, shown: Sequence[str]) -> None:
    """Write index.rst and a page per room into folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for room in shown:
        (folder / f"{room}.rst").write_text(page(room), encoding="utf-8")
    pages = "\n".join(f"   {room}" for room in shown)
    (folder / "index.rst").write_text(INDEX.format(pages=pages), encoding="utf-8")


def page(room: str) -> str:
    """The room's own docstring, then a section per module."""
    top = f"lessons_lib.{room}"
    inside = [name for name in modules() if name.startswith(f"{top}.")]
    parts = [heading(room, "="), documented(top)]
    for name in inside:
        parts += [heading(name.removeprefix(f"{top}."), "-"), documented(name)]
    return "\n".join(parts)


def home(line: str) -> str:
    """A line of the package's own docstring in which a name that it offers leads to where that is made."""
    return re.sub(r":py:obj:`(\w+)`", made, line)


def made(found: re.Match) -> str:
    """A name that the package offers, with the module that makes it; any other as it was."""
    name = found.group(1)
    if name not in lessons_lib.__all__:
        return found.group()
    return f":py:obj:`{name} <{getattr(lessons_lib, name).__module__}.{name}>`"


def heading(name: str, line: str) -> str:
    """A title in reStructuredText, `line` under it."""
    return f"{name}\n{line * len(name)}\n"


def documented(module: str) -> str:
    """Sphinx's words for: all that a module documents, in its own order."""
    return f".. automodule:: {module}\n   :members:\n   :ignore-module-all:\n   :member-order: bysource\n"
