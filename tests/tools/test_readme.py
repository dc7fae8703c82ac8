"""README's generated parts: from stored lessons, claims and the repository's address."""

import re
import shutil

import pytest

from lessons_lib.course.lessons import CLAIMS
from lessons_lib.measure import results
from lessons_lib.measure.clock import Interval
from lessons_lib.paths import ROOT
from tools import readme

TITLE = "# 00\n\nWhy? Reading time: 30 minutes. Running time: 2 minutes."


@pytest.fixture
def folder(tmp_path):
    """The stored claims, of which one technique's have other values."""
    shutil.copy(CLAIMS, tmp_path)
    rows = [
        results.make_claim("assisted/mixed/vs-plain", Interval(1.5, 1.25, 1.75), ">= 1", "eager"),
        results.make_claim("assisted/vs-transformers", 1.25, ">= 1", "eager"),
        results.make_claim(
            "ladder/grounded/vs-generate", Interval(13.87, 9.4, 25.64), ">= 12", "generate; without the prefill",
            note="9.42 with the prefill",
        ),
    ]  # fmt: skip
    results.update(tmp_path / "claims.json", rows)
    return tmp_path


def test_a_gain_has_its_interval_its_peer_and_says_what_it_leaves_out(folder):
    table = readme.six_results(folder)
    assert "| **1.5** (1.25 to 1.75) | plain decoding" in table
    assert "| 1.25 times as fast as transformers, assistant_model |" in table
    assert "| **13.9** (9.4 to 25.6), decoding | transformers generate, eager" in table
    said = readme.headline(folder)
    assert "**13.9 times as fast**" in said and "(95%: 9.4 to 25.6; 9.42 times with the time" in said


@pytest.mark.parametrize("minutes", ["40", "2 to 5"])
def test_times_to_read_and_to_run_are_those_of_the_opening(write_lesson, minutes):
    opening = f"Reading time: 30 minutes. Running time:\n{minutes} minutes on two CPU cores."
    lesson = write_lesson("06_lesson", title=f"# 06 A lesson\n\nWhy? {opening}")
    assert readme.times(lesson.read()) == ["30", minutes]


def test_every_stored_lesson_has_a_question_and_times():
    rows = [readme.lesson_row(lesson, "") for lesson in readme.find()]
    assert rows and all(row[1] and row[1][-1] in "?." and "?" not in row[2] + row[3] for row in rows)


@pytest.mark.parametrize(
    "number, opening, said",
    [
        ("00", "This is a lesson. **What is it?** And more?", "What is it?"),
        ("01", "This one asks nothing.", readme.QUESTIONS["01"]),
    ],
)
def test_a_lessons_question_is_the_first_of_its_opening_or_typed(write_lesson, number, opening, said):
    lesson = write_lesson(f"{number}_lesson", title=f"# {number} A lesson\n\n{opening}")
    assert readme.question(lesson, lesson.read()) == said


def test_badges_and_links_to_colab_need_an_address_on_github(write_lesson):
    lesson = write_lesson("00_lesson", title=TITLE)
    assert readme.badges("") == readme.badges("https://example.org/a/b") == ""
    assert "Colab" not in readme.lesson_table([lesson], "")
    assert "github.com/a/b/actions/workflows/tests.yml/badge.svg" in readme.badges("https://github.com/a/b.git")
    assert "[Open in Colab](" in readme.lesson_table([lesson], "https://github.com/a/b")
    assert (ROOT / readme.WORKFLOW).exists()


def test_an_appendix_has_a_row_of_its_own_below_its_lesson(write_lesson):
    lessons = [
        write_lesson(name, title=TITLE.replace("00", name)) for name in ("05_batching", "05x_study", "06_drafts")
    ]
    rows = readme.lesson_table(lessons, "").splitlines()[2:]
    assert [row.split("]")[0] for row in rows] == ["| [05_batching", "| [05x_study", "| [06_drafts"]
    assert "(notebooks/05x_study.ipynb)" in rows[1]


def test_a_generated_part_replaces_the_one_before_and_needs_its_markers():
    text = "before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter\n"
    assert readme.between(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="lessons:begin"):
        readme.between("no markers", "lessons", "x")


def test_readme_is_two_screens_long():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\[Open in Colab\]\(.*?\)|!\[.*?\]", "", text)  # without alt texts, which no screen shows
    assert len(text.encode()) < 8900
