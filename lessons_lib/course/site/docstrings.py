"""Docstrings as they are written here (plain prose, names in backticks, lists in columns) as reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from lessons_lib.course.site.bibliography import ARXIV

COLUMNS = re.compile(r"(?:\S ?)+ {2,}(?=\S)")  # a name, two spaces or more, what it is
NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?")
MARKUP = re.compile(r"[\\*_|]")  # what would be markup, and is none in ours
NUMBERED = re.compile(r"\A(\w+|#|\(\w+)([.)] )")


def to_rst(lines: Iterable[str]) -> list[str]:
    """The same text for docutils: paragraphs, code, examples with >>>, lists with - and lists in two columns."""
    return [line for block in blocks(lines) for line in [*shaped(block), ""]]


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines that belong together: parted by blank ones, and where indented ones begin or end."""
    for filled, paragraph in groupby(lines, key=lambda line: bool(line.strip())):
        paragraph = list(paragraph) if filled else []
        if paragraph and (paragraph[0].startswith((">>>", "- ")) or COLUMNS.match(paragraph[0])):
            yield paragraph
            continue
        yield from (list(block) for _, block in groupby(paragraph, key=lambda line: line.startswith(" ")))


def shaped(block: list[str]) -> list[str]:
    """One block in reStructuredText."""
    first = block[0]
    if first.startswith(">>>"):
        return block
    if first.startswith(" "):
        return ["::", "", *(f"    {line}" for line in block)]
    if first.startswith("- "):
        return [line[:2] + inline(line[2:]) for line in block]
    if found := COLUMNS.match(first):
        return in_columns(block, found.end())
    return [NUMBERED.sub(r"\1\\\2", inline(" ".join(block)), count=1)]


def in_columns(block: list[str], width: int) -> list[str]:
    """A definition list of lines whose names stand left of `width`; a line without a name goes on with the last."""
    rows: list[list[str]] = []
    for line in block:
        name, text = line[:width].strip(), line[width:].strip()
        rows.append([name, text]) if name else rows[-1].append(text)
    return [line for name, *text in rows for line in (named(name), f"    {inline(' '.join(text))}")]


def named(names: str) -> str:
    """What stands left in a list: one name or several, parted by commas."""
    return ", ".join(code(name) if NAME.fullmatch(name) else inline(name) for name in names.split(", "))


def inline(text: str) -> str:
    """Backticks as code, linked where they name something that the reference has; other signs as they are."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(code(part) if i % 2 else words(part) for i, part in enumerate(parts))


def words(text: str) -> str:
    """Plain words: nothing in them is markup, and an arXiv number leads to its paper."""
    return ARXIV.sub(r"`\1 <https://arxiv.org/abs/\1>`__", MARKUP.sub(r"\\\g<0>", text))


def code(text: str) -> str:
    """A name as a reference, anything else as a literal; backslash and space keep it apart from its neighbours."""
    return f"\\ :py:obj:`{text}`\\ " if NAME.fullmatch(text) else f"\\ ``{text}``\\ "
