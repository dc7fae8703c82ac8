"""Write README's tables from the package's docstrings, the stored lessons and bench/results/claims.json."""

from __future__ import annotations

import re
from pathlib import Path

import lessons_lib
from lessons_lib.course.lessons import CLAIMS, Lesson, find
from lessons_lib.course.render import title
from lessons_lib.measure import results, tables, techniques
from lessons_lib.paths import ROOT
from tools import store

README = ROOT / "README.md"
HEADINGS = ("technique", "question", "claim", "predicted", "measured")


def fill(readme: Path = README, lessons: list[Lesson] | None = None, claims_file: Path = CLAIMS) -> None:
    """Write the tables into README, between their markers.

    Raises ValueError for missing markers or a damaged claims file.
    """
    lessons = find() if lessons is None else lessons
    readme.write_text(filled(readme.read_text(encoding="utf-8"), lessons, claims_file), encoding="utf-8", newline="\n")


def filled(text: str, lessons: list[Lesson], claims_file: Path = CLAIMS) -> str:
    """README's text with up-to-date tables. Raises ValueError like `fill`."""
    rows = results.load(claims_file)
    text = between(text, "names", name_table())
    text = between(text, "lessons", lesson_table(lessons, store.address()))
    text = between(text, "techniques", technique_table(claims_file))
    return between(text, "claims", results.claim_table(rows) if rows else "Not measured yet: `make bench` does.")


def technique_table(claims_file: Path) -> str:
    """A row per technique whose speed was measured."""
    rows = techniques.technique_cells(claims_file.parent)
    return tables.markdown(techniques.TECHNIQUES, rows) if rows else "Not measured yet: `make bench` does."


def between(text: str, marker: str, content: str) -> str:
    """Replace the text between <!-- marker:begin --> and <!-- marker:end -->. Raises ValueError if they are missing."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"README needs the lines {begin} and {end} once each.")
    head, tail = text.split(begin)[0], text.split(end)[1]
    return f"{head}{begin}\n{content}\n{end}{tail}"


def name_table() -> str:
    """A row per public name, with the first line of its docstring."""
    lines = [line.split(None, 1) for line in lessons_lib.__doc__.strip().split("\n\n")[-1].splitlines()]
    return tables.markdown(("name", "what it is"), [[f"`{name}`", what] for name, what in lines])


def lesson_table(lessons: list[Lesson], address: str) -> str:
    """A row per lesson: its question, and its first score with both prediction and measurement."""
    rows = [lesson_row(lesson, address) for lesson in lessons]
    return tables.markdown(HEADINGS, rows) if rows else "No lessons yet."


def lesson_row(lesson: Lesson, address: str) -> list[str]:
    """Name with its links, question, claim, predicted, measured. address: of the repository, for Colab."""
    nb = lesson.read()
    name = f"[{title(nb) or lesson.name}](notebooks/{lesson.path.name})"
    opening = store.link(address, lesson.name)
    score = next((s for s in results.collect([lesson.path]) if s.ratio is not None), None)
    told = ["-"] * 3
    if score:
        told = [score.claim, *(f"{tables.number(x)} {score.unit}".strip() for x in (score.predicted, score.measured))]
    return [f"{name} {opening}".strip(), question(nb), *told]


def question(nb) -> str:
    """The first question in a lesson's text; "" if there is none."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    prose = " ".join(line for line in text.splitlines() if line and not line.startswith("#"))
    found = re.search(r"[^.!?]*\?", prose)
    return found.group().strip(" *_") if found else ""


if __name__ == "__main__":
    fill()
