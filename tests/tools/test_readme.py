"""README's generated parts: from stored lessons, claims and the repository's address."""

import re

import pytest
from nbformat.v4 import new_output

from lessons_lib.measure import results
from lessons_lib.measure.clock import Interval
from lessons_lib.measure.results import MIME
from lessons_lib.paths import ROOT
from tools import readme, store

TEXT = """before
<!-- badges:begin --><!-- badges:end -->
<!-- headline:begin --><!-- headline:end -->
<!-- picture:begin --><!-- picture:end -->
<!-- results:begin -->
old
<!-- results:end -->
between
<!-- lessons:begin --><!-- lessons:end -->
after
"""


@pytest.fixture
def measured_lesson(write_lesson, monkeypatch):
    """A stored lesson: a prediction within 25%, one beyond, one exact, one open, one from the run's own counts."""
    monkeypatch.setattr(store, "address", lambda: "")
    opening = "Prefill is done. What does a cache save? Reading time: 50 minutes. Running time: 2 minutes."
    lesson = write_lesson("02_kv_cache", "show()", title=f"# 02 · KV cache\n\n{opening}")
    nb = lesson.read()
    pairs = {"near": (100, 80.5), "far": (100, 50.0), "exact": (7, 7), "open": (1, None)}
    rows = [
        {"lesson": "02", "claim": name, "unit": "tok/s", "predicted": predicted, "measured": measured}
        for name, (predicted, measured) in pairs.items()
    ]
    rows.append(rows[0] | {"claim": "told", "note": "steps as counted in the run"})
    nb.cells[-1].outputs = [new_output("display_data", {MIME: rows})]
    store.write(nb, lesson.path)
    return lesson


def test_the_parts_come_from_stored_lessons_and_claims(measured_lesson, tmp_path):
    claims = [("medusa/vs-plain", 0.9), ("assisted/mixed/vs-plain", 1.5), ("assisted/vs-transformers", 1.25)]
    rows = [results.make_claim(name, value, ">= 1", "eager") for name, value in claims]
    results.update(tmp_path / "claims.json", rows)
    now = readme.filled(TEXT, [measured_lesson], tmp_path)
    assert "| [02 · KV cache](notebooks/02_kv_cache.ipynb) | What does a cache save? | 50 min | 2 min |" in now
    assert "1 of 2 predictions are within a factor of 1.25" in now and "far (lesson 02), off by a factor of 2.0" in now
    assert "| **1.5** | plain decoding | 1.25 times as fast as transformers, assistant_model |" in now
    assert (
        "2 of 3 claims reach the bar set before measuring; [RESULTS.md](RESULTS.md) begins with the others" in now
        and "old\n" not in now
    )
    assert now.startswith("before\n") and "\nbetween\n" in now and now.endswith("after\n")
    assert readme.filled(now, [measured_lesson], tmp_path) == now


def test_without_claims_it_says_how_to_measure_them(write_lesson, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "address", lambda: "")
    now = readme.filled(TEXT, [write_lesson("00_lesson")], tmp_path)
    assert "Nothing is measured yet: `make bench` does it." in now and "![" not in now


def test_a_gain_has_its_interval_and_says_what_it_leaves_out(tmp_path):
    name, ours, baseline = "ladder/grounded/vs-generate", Interval(13.87, 9.4, 25.64), "generate; without the prefill"
    claim = results.make_claim(name, ours, ">= 12", baseline, note="9.42 with the prefill")
    results.update(tmp_path / "claims.json", [claim])
    assert "| **13.9** (9.4 to 25.6), decoding | transformers generate, eager |" in readme.six_results(tmp_path)
    said = readme.headline(tmp_path)
    assert "**13.9 times as fast**" in said and "(95%: 9.4 to 25.6; 9.42 times with the time" in said


@pytest.mark.parametrize(
    "opening, times",
    [
        ("Reading time: 30 minutes. Running time: 2 minutes on two CPU cores.", ("30", "2")),
        ("Reading time: 40 minutes. Running time: 2 to 5 minutes on two CPU cores.", ("40", "2 to 5")),
        ("Reading time: about 45 minutes. Running time: about\ntwo minutes on two CPU cores.", ("45", "2")),
        ("Reading time: 40 minutes. Running time: under a minute.", ("40", "1")),
        ("You need lesson 00.", ("?", "?")),
    ],
)
def test_times_to_read_and_to_run_are_those_of_the_opening(write_lesson, opening, times):
    lesson = write_lesson("06_lesson", title=f"# 06 A lesson\n\nWhy? {opening}")
    assert readme.times(lesson.read()) == times


def test_every_stored_lesson_has_a_question_and_times():
    rows = [readme.lesson_row(lesson, "") for lesson in readme.find()]
    assert rows and all(row[1] and row[1][-1] in "?." and "?" not in row[2] + row[3] for row in rows)


@pytest.mark.parametrize(
    "number, opening, said",
    [
        ("00", "This is a lesson. **What is it?** And more?", "What is it?"),
        ("01", "This one asks nothing.", readme.QUESTIONS["01"]),
        ("77", "Neither does this. It has no typed question.", "Neither does this."),
    ],
)
def test_a_lessons_question_is_the_first_of_its_opening_or_typed(write_lesson, number, opening, said):
    lesson = write_lesson(f"{number}_lesson", title=f"# {number} A lesson\n\n{opening}")
    assert readme.question(lesson, lesson.read()) == said


def test_badges_and_links_to_colab_need_an_address_on_github(write_lesson):
    lesson = write_lesson("00_lesson")
    assert readme.badges("") == readme.badges("https://example.org/a/b") == ""
    assert "Colab" not in readme.lesson_table([lesson], "")
    assert "github.com/a/b/actions/workflows/tests.yml/badge.svg" in readme.badges("https://github.com/a/b.git")
    assert "[Open in Colab](" in readme.lesson_table([lesson], "https://github.com/a/b")
    assert (ROOT / readme.WORKFLOW).exists()


def test_an_appendix_has_a_row_of_its_own_below_its_lesson(write_lesson):
    lessons = [write_lesson(name, title=f"# {name}") for name in ("05_batching", "05x_study", "06_drafts")]
    rows = readme.lesson_table(lessons, "").splitlines()[2:]
    assert [row.split("]")[0] for row in rows] == ["| [05_batching", "| [05x_study", "| [06_drafts"]
    assert "(notebooks/05x_study.ipynb)" in rows[1]


def test_readme_without_markers_is_an_error():
    with pytest.raises(ValueError, match="lessons:begin"):
        readme.between("no markers", "lessons", "x")


def test_readme_is_two_screens_long():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\[Open in Colab\]\(.*?\)|!\[.*?\]", "", text)  # without alt texts, which no screen shows
    assert len(text.encode()) < 8900
