"""A stored lesson as the site reads it: the same cells and outputs, its figures as files with their alt text."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell, new_output

from lessons_lib.course import render
from lessons_lib.course.lessons import Lesson
from lessons_lib.course.site import reference
from lessons_lib.course.site.glossary import Term
from lessons_lib.measure.scorecard import MIME

HEADING = re.compile(r"^#+ ", flags=re.M)
PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def write(lesson: Lesson, folder: Path, terms: Sequence[Term] = ()) -> None:
    """Write NAME.ipynb for Sphinx, the figures/ in it, and, to be downloaded, the notebook as it is.

    terms: the glossary's; those of this lesson are listed at its end, beside the modules that it imports.
    """
    for name in ("figures", "notebooks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "notebooks" / lesson.path.name).write_bytes(lesson.path.read_bytes())
    nb = render.readable(lesson.read())
    nb.cells = [part for cell in nb.cells for part in parted(cell, folder)]
    nb.cells.insert(1, new_markdown_cell(f"{{download}}`This lesson as a notebook <notebooks/{lesson.path.name}>`"))
    nb.cells += look_up(nb, [term for term in terms if term.lesson == lesson.number])
    nbformat.write(nb, folder / lesson.path.name)


def parted(cell: nbformat.NotebookNode, folder: Path) -> Iterator[nbformat.NotebookNode]:
    """A cell with outputs for the site. A text with headings that it ends with, a summary, is a cell of its own."""
    if cell.cell_type == "code":
        cell.outputs = [shown(output, folder) for output in cell.outputs]
        last = cell.outputs[-1].get("data", {}).get("text/markdown", "") if cell.outputs else ""
        if HEADING.search(last):
            cell.outputs.pop()
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
            yield new_markdown_cell(last)
    yield cell


def shown(output: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """An output without what a page cannot show; a picture as a file, so that alt text and width go with it."""
    data = output.get("data", {})
    data.pop(MIME, None)
    if "image/png" not in data:
        return output
    said, image = output.metadata.get("image/png", {}), base64.b64decode(data["image/png"])
    path = folder / "figures" / f"{hashlib.sha256(image).hexdigest()[:12]}.png"
    path.write_bytes(image)
    alt = PUNCTUATION.sub(r"\\\g<0>", " ".join(said.get("alt", "").split()))
    width = f"{{width={said['width']}px}}" if "width" in said else ""
    return new_output("display_data", {"text/markdown": f"![{alt}](figures/{path.name}){width}"})


def look_up(nb: nbformat.NotebookNode, terms: Sequence[Term]) -> list[nbformat.NotebookNode]:
    """The section that leads to glossary and reference; none where there is nothing to look up."""
    words = ", ".join(f"{{term}}`{term.name}`" for term in terms)
    modules = ", ".join(f"{{py:mod}}`{name.partition('.')[2]} <{name}>`" for name in imported(nb))
    lines = [f"- {name}: {found}" for name, found in (("New words", words), ("From the library", modules)) if found]
    return [new_markdown_cell("\n".join(["## Look up", "", *lines]))] if lines else []


def imported(nb: nbformat.NotebookNode) -> list[str]:
    """The library's modules that a lesson's code imports, by full name."""
    names, known = set(), set(reference.modules())
    for cell in (cell for cell in nb.cells if cell.cell_type == "code"):
        for line in (line for line in ast.walk(ast.parse(cell.source)) if isinstance(line, ast.ImportFrom)):
            names |= {line.module, *(f"{line.module}.{alias.name}" for alias in line.names)}
    return sorted((names & known) - {"lessons_lib"})
