"""The glossary: terms with a sentence and their lesson, from glossary.toml; symbols from CONTRIBUTING's table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lessons_lib.paths import ROOT

SOURCE = Path(__file__).with_name("glossary.toml")
SYMBOLS = ROOT / "CONTRIBUTING.md"


@dataclass(frozen=True)
class Term:
    """A word that lessons use. lesson: number of the one where it comes up; text: one sentence."""

    name: str
    lesson: str
    text: str


def load(path: Path = SOURCE) -> list[Term]:
    """The terms in alphabetical order; TypeError for one without lesson or text."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    return sorted((Term(name, **fields) for name, fields in read.items()), key=lambda term: term.name.lower())


def symbols(text: str) -> str:
    """CONTRIBUTING's table of symbols as it stands there. Raises ValueError if there is none."""
    found = re.search(r"^\| symbol \|.*?(?=\n\n)", text, flags=re.M | re.S)
    if not found:
        raise ValueError("CONTRIBUTING.md has no table that begins with `| symbol |`; the glossary shows it.")
    return found.group()


def markdown(terms: Sequence[Term], lessons: Mapping[str, str], table: str) -> str:
    """The page. lessons: number -> name of those that the site has; table: the symbols."""
    entries = []
    for term in terms:
        at = f" {{doc}}`{term.lesson} </lessons/{lessons[term.lesson]}>`" if term.lesson in lessons else ""
        entries += [term.name, f"  {term.text}{at}", ""]
    listed = "\n".join([":::{glossary}", *entries, ":::"])
    return f"# Glossary\n\n## Terms\n\nThe number leads to the lesson.\n\n{listed}\n\n## Symbols\n\n{table}\n"
