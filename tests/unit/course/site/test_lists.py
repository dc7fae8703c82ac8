"""Bibliography and glossary: nothing that the lessons name is missing, and all leads somewhere."""

import re

import pytest

from lessons_lib.course.lessons import find
from lessons_lib.course.site import bibliography, glossary
from lessons_lib.paths import ROOT

LESSONS = {lesson.number: lesson for lesson in find()}
TERMS = glossary.load()


def test_every_paper_and_document_named_in_lessons_and_docstrings_is_listed():
    places = bibliography.named([*bibliography.lesson_texts(find()), *bibliography.docstrings()])
    assert len(places) > 40
    assert bibliography.missing(bibliography.load(), places) == []


def test_what_is_not_listed_is_said_with_its_place():
    places = bibliography.named(
        [("07", "as in arXiv 9912.00001"), ("lessons_lib.x", "(9912.00001), and https://a.org/b.")]
    )
    said = bibliography.missing([bibliography.Source("https://a.org/b", "B", 2024, "C")], places)
    assert said == ["9912.00001 is named in 07, lessons_lib.x, but stands not in bibliography.toml"]


@pytest.mark.parametrize(
    "text, keys",
    [
        ("arXiv 1706.03762, arXiv:1706.03762v2 (2002.0520)", {"1706.03762", "2002.0520"}),
        ("[x](https://arxiv.org/abs/1706.03762)", {"1706.03762"}),
        ("1799.12345 has no such month, 12345.6789 and 0.1706.03762 are no number", set()),
        (
            "at http://127.0.0.1:8000, [y](https://a.org/b_c/), `https://a.org`.",
            {"https://a.org/b_c/", "https://a.org"},
        ),
    ],
)
def test_numbers_and_addresses_are_found(text, keys):
    assert bibliography.keys(text) == keys


def test_an_entry_leads_to_the_paper_and_to_those_who_name_it():
    source = bibliography.Source("1706.03762", "Vaswani et al.", 2017, "Attention")
    page = bibliography.markdown([source], {source.key: ["04", "lessons_lib.a.b"]}, {"04": "04_kernels"})
    assert "- Vaswani et al., 2017. [Attention](https://arxiv.org/abs/1706.03762). Named in" in page
    assert "{doc}`04 </lessons/04_kernels>`, {py:mod}`a.b <lessons_lib.a.b>`." in page


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_term_is_explained_in_one_sentence_and_comes_up_in_its_lesson(term):
    assert re.fullmatch(r"[A-Z][^.]*(?:\.\w[^.]*)*\.", term.text)
    said = "\n".join(cell.source for cell in LESSONS[term.lesson].read().cells)
    assert re.sub(r"\W+", " ", term.name).lower() in re.sub(r"\W+", " ", said).lower()


def test_every_lesson_has_terms():
    assert {number for number in LESSONS if not number.endswith("x")} <= {term.lesson for term in TERMS} <= set(LESSONS)


def test_symbols_are_contributings_own():
    table = glossary.symbols(glossary.SYMBOLS.read_text(encoding="utf-8"))
    assert table.splitlines()[0].startswith("| symbol |") and "| τ |" in table and len(table.splitlines()) > 10
    with pytest.raises(ValueError, match="symbol"):
        glossary.symbols("| sign | meaning |\n")


def test_the_glossary_leads_to_lessons_that_the_site_has():
    page = glossary.markdown(TERMS[:1], {TERMS[0].lesson: "00_name"}, "| symbol |")
    assert f"{TERMS[0].text} {{doc}}`{TERMS[0].lesson} </lessons/00_name>`" in page
    assert "{doc}" not in glossary.markdown(TERMS[:1], {}, "| symbol |")


def test_every_file_that_contributing_names_exists():
    text = glossary.SYMBOLS.read_text(encoding="utf-8")
    files = set(re.findall(r"[\w/]+\.(?:py|toml|txt|yml|png|json)\b", text)) - {"course/exercises/lesson_NN.py"}
    folders = [ROOT, ROOT / "lessons_lib", ROOT / "lessons_lib/quantization", ROOT / "lessons_lib/serving"]
    folders += [ROOT / "lessons_lib/course/site"]
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    missing = {name for name in files - tests if not any((folder / name).exists() for folder in folders)}
    assert len(files) > 30 and missing == set()
