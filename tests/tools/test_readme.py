"""README's generated tables."""

import pytest
from nbformat.v4 import new_output

from lessons_lib.measure import results
from lessons_lib.measure.results import MIME
from tools import readme, store

TEXT = """before
<!-- names:begin --><!-- names:end -->
<!-- lessons:begin -->
old
<!-- lessons:end -->
between
<!-- techniques:begin --><!-- techniques:end -->
<!-- claims:begin --><!-- claims:end -->
after
"""


def score(claim, predicted, measured):
    return {"lesson": "02", "claim": claim, "unit": "tok/s", "predicted": predicted, "measured": measured}


@pytest.fixture
def measured_lesson(write_lesson, monkeypatch):
    """A stored lesson with a score that lacks its measurement, and one that has it."""
    monkeypatch.setattr(store, "address", lambda: "")
    lesson = write_lesson("02_kv_cache", "show()", title="# 02 KV cache\n\nPrefill is done. What does a cache save?")
    nb = lesson.read()
    rows = [score("forgotten", 1, None), score("decode | speed", 100, 80.5), score("later", 1, 1)]
    nb.cells[-1].outputs = [new_output("display_data", {MIME: rows})]
    store.write(nb, lesson.path)
    return lesson


def test_the_tables_come_from_stored_lessons_and_claims(measured_lesson, tmp_path):
    results.update(tmp_path / "claims.json", [results.make_claim("cache/512", 9.0, ">= 8", "eager fp32")])
    now = readme.filled(TEXT, [measured_lesson], tmp_path / "claims.json")
    assert "| [02 KV cache](notebooks/02_kv_cache.ipynb) | What does a cache save? | decode \\| speed |" in now
    assert " | 100 tok/s | 80.5 tok/s |" in now
    assert "cache/512" in now and ">= 8" in now and "old\n" not in now
    assert now.startswith("before\n") and "\nbetween\n" in now and now.endswith("after\n")
    assert readme.filled(now, [measured_lesson], tmp_path / "claims.json") == now


def test_a_lesson_without_scores_still_has_a_row(write_lesson, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "address", lambda: "https://github.com/a/b")
    now = readme.filled(TEXT, [write_lesson("00_lesson")], tmp_path / "none.json")
    assert "| How much is it? | - | - | - |" in now and "[Open in Colab](" in now
    assert "Not measured yet" in now


def test_an_appendix_has_a_row_of_its_own_below_its_lesson(write_lesson, monkeypatch):
    monkeypatch.setattr(store, "address", lambda: "")
    lessons = [write_lesson(name, title=f"# {name}") for name in ("05_batching", "05x_study", "06_drafts")]
    rows = readme.lesson_table(lessons, "").splitlines()[2:]
    assert [row.split("]")[0] for row in rows] == ["| [05_batching", "| [05x_study", "| [06_drafts"]
    assert "(notebooks/05x_study.ipynb)" in rows[1]


def test_readme_without_markers_is_an_error():
    with pytest.raises(ValueError, match="lessons:begin"):
        readme.between("no markers", "lessons", "x")


def test_fill_writes_the_file(measured_lesson, tmp_path):
    file = tmp_path / "README.md"
    file.write_text(TEXT)
    readme.fill(file, [measured_lesson], tmp_path / "none.json")
    assert "02 KV cache" in file.read_text()
