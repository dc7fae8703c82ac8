"""The folder that Sphinx reads, written anew from notebooks, docstrings, lists, claims and README's first words."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from lessons_lib.course import readme
from lessons_lib.course.lessons import Lesson
from lessons_lib.course.site import bibliography, glossary, reference, stored_lessons
from lessons_lib.measure import claims, scorecard

INDEX = """{title}

{words}

## Lessons

{lines}

{run}

```{{toctree}}
:hidden:
:caption: Lessons

{lessons}
```

```{{toctree}}
:hidden:
:caption: Look up

{others}
```
"""
RUN = """To run them on your own machine, and change them: a clone of the repository, then `make lab`. What is predicted
and measured in all of them is gathered on the [scorecard](scorecard.md); words and symbols are in the
[glossary](glossary.md), papers in the [bibliography](bibliography.md), and the code that the lessons build in the
[library reference](reference/index.rst)."""


def write(folder: Path, lessons: list[Lesson], rooms: Sequence[str], run: Path) -> list[str]:
    """Write all sources into folder, which is emptied first; gives what is missing in the lists, a sentence each.

    rooms: those of the reference. run: where `make run` leaves its scorecard, which becomes a page if it is there.
    ValueError as `glossary.symbols`, and for a damaged claims file.
    """
    shutil.rmtree(folder, ignore_errors=True)
    terms, sources = glossary.load(), bibliography.load()
    for lesson in lessons:
        stored_lessons.write(lesson, folder / "lessons", terms)
    reference.write(folder / "reference", rooms)
    names = {lesson.number: lesson.name for lesson in lessons}
    symbols = glossary.symbols(glossary.SYMBOLS.read_text(encoding="utf-8"))
    put(folder / "glossary.md", glossary.markdown(terms, names, symbols))
    places = bibliography.named([*bibliography.lesson_texts(lessons), *bibliography.docstrings()])
    put(folder / "bibliography.md", bibliography.markdown(sources, places, names))
    scores = scorecard.collect([lesson.path for lesson in lessons])
    scorecard.write(scores, folder, named=claims.load(readme.CLAIMS))
    others = ["reference/index", "glossary", "bibliography", "scorecard"]
    if (run / "scorecard.md").exists():
        here = (run / "scorecard.md").read_text(encoding="utf-8")
        put(folder / "scorecard_here.md", here.replace("# Scorecard", "# Scorecard of this machine", 1))
        others.append("scorecard_here")
    put(folder / "index.md", index(lessons, others))
    return bibliography.missing(sources, places)


def put(path: Path, text: str) -> None:
    """Write a page."""
    path.write_text(text, encoding="utf-8")


def index(lessons: list[Lesson], others: list[str]) -> str:
    """The start page: README's title and first words, the lessons, and what the menu holds."""
    text = readme.README.read_text(encoding="utf-8")
    title, words = text.partition("\n## ")[0].strip().split("\n\n", 1)
    inside = "\n".join(f"lessons/{lesson.name}" for lesson in lessons)
    lines = "\n".join(entry(lesson) for lesson in lessons)
    return INDEX.format(title=title, words=words, lines=lines, run=RUN, lessons=inside, others="\n".join(others))


def entry(lesson: Lesson) -> str:
    """What README's table says of a lesson, in lines, which a narrow screen can show."""
    _, question, claim, predicted, measured = readme.lesson_row(lesson, address="")
    said = f"\\\n  *{claim}: predicted {predicted}, measured {measured}*" if claim != "-" else ""
    return f"- {{doc}}`/lessons/{lesson.name}`\\\n  {question}{said}"
