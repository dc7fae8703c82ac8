"""The bibliography: every paper and document that lessons and docstrings name, from bibliography.toml."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lessons_lib.course.lessons import Lesson
from lessons_lib.paths import ROOT

SOURCE = Path(__file__).with_name("bibliography.toml")
ARXIV = re.compile(r"(?<![\d.])(\d\d(?:0[1-9]|1[0-2])\.\d{4,5})(?![\d.]*\d)")
ADDRESS = re.compile(r"https?://[^\s)\"'<>\]}`]+")
HERE = ("http://127.0.0.1", "http://localhost")


@dataclass(frozen=True)
class Source:
    """A paper or document. key: arXiv number or address, which is how lessons and docstrings name it."""

    key: str
    who: str
    year: int
    title: str

    @property
    def address(self) -> str:
        """Where it can be read: the key itself, or arXiv's page."""
        return self.key if "://" in self.key else f"https://arxiv.org/abs/{self.key}"


def load(path: Path = SOURCE) -> list[Source]:
    """All sources by first author and year; TypeError for one without who, year or title."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    found = [Source(key, **fields) for key, fields in read.items()]
    return sorted(found, key=lambda source: (source.who.lower(), source.year, source.title))


def keys(text: str) -> set[str]:
    """The arXiv numbers in a text, with or without that name before them, and the addresses of other documents."""
    named = set(ARXIV.findall(text))
    pages = {found.rstrip(".,;:") for found in ADDRESS.findall(text)}
    return named | {page for page in pages if not page.startswith(HERE) and not ARXIV.search(page)}


def named(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """(place, text) pairs -> key: the places that name it."""
    found: dict[str, list[str]] = {}
    for place, text in texts:
        for key in keys(text):
            found.setdefault(key, []).append(place)
    return found


def lesson_texts(lessons: Sequence[Lesson]) -> Iterator[tuple[str, str]]:
    """A lesson's number and all that it says itself: its cells, not their outputs, which are numbers."""
    return ((lesson.number, "\n".join(cell.source for cell in lesson.read().cells)) for lesson in lessons)


def docstrings() -> Iterator[tuple[str, str]]:
    """A module's full name and its docstrings."""
    for path in sorted((ROOT / "lessons_lib").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        nodes = (n for n in tree if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
        texts = [ast.get_docstring(node) or "" for node in nodes]
        yield ".".join(part for part in parts if part != "__init__"), "\n".join(texts)


def missing(sources: Sequence[Source], places: Mapping[str, Sequence[str]]) -> list[str]:
    """What is named somewhere and stands in no source, a sentence each."""
    known = {source.key for source in sources}
    return [
        f"{key} is named in {', '.join(places[key])}, but stands not in {SOURCE.name}"
        for key in sorted(set(places) - known)
    ]


def markdown(sources: Sequence[Source], places: Mapping[str, Sequence[str]], lessons: Mapping[str, str]) -> str:
    """The page, of those sources that are named somewhere. lessons: number -> name of those that the site has."""
    lines = [entry(source, places[source.key], lessons) for source in sources if source.key in places]
    return "\n".join(["# Bibliography", "", "Papers and documents, and who names them here.", "", *lines, ""])


def entry(source: Source, places: Sequence[str], lessons: Mapping[str, str]) -> str:
    """One source with its address, and links to the lessons and modules that name it."""
    by = [
        f"{{doc}}`{place} </lessons/{lessons[place]}>`"
        if place in lessons
        else f"{{py:mod}}`{place.partition('.')[2]} <{place}>`"
        for place in places
    ]
    return f"- {source.who}, {source.year}. [{source.title}]({source.address}). Named in {', '.join(by)}."
