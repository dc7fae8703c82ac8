"""What lessons and pages import from lessons_lib exists; some lessons are executed on few machines only."""

import re
from importlib import import_module
from importlib.util import find_spec

import nbformat
import pytest

from lessons_lib.paths import ROOT

PAGES = [
    path
    for at in ("*.md", "docs/*.md", "lessons_lib/weights/*/README.md", "notebooks/*.ipynb")
    for path in sorted(ROOT.glob(at))
]
IMPORT = re.compile(r"^ *from (lessons_lib[\w.]*) import (?:\(([^)]*)\)|(.+))", re.M)
SAID = re.compile(r"`(?:\w+ = )?(\w+)(?:\([^`]*\))?` from\s+`(lessons_lib[\w.]*)`")  # in a sentence


def imported(text: str) -> list[tuple[str, str]]:
    """(module, name) of every import in code, folded solutions and sentences."""
    found = [(module, name) for name, module in SAID.findall(text)]
    for module, several, one in IMPORT.findall(text):
        names = re.sub(r"#.*", "", several or one).split(",")
        found += [(module, name.split()[0]) for name in names if name.strip()]
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_name_that_a_lesson_or_a_page_imports_exists(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
    missing = [
        (module, name)
        for module, name in imported(text)
        if not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_imports_of_every_form_are_seen():
    code = "from lessons_lib import a, b as c  # d\n    from lessons_lib.x import (\n    e,  # f\n    g,\n)"
    assert imported(code) == [
        ("lessons_lib", "a"),
        ("lessons_lib", "b"),
        ("lessons_lib.x", "e"),
        ("lessons_lib.x", "g"),
    ]
    sentence = "`h(1)` from `lessons_lib.y`; `i = j(2)` from\n`lessons_lib`"
    assert imported(sentence) == [("lessons_lib.y", "h"), ("lessons_lib", "j")]
