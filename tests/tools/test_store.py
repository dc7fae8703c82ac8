"""Outputs kept in notebooks/: the same bytes each time, and none that only a live page shows."""

import json

import pytest
from nbformat.v4 import new_output

from lessons_lib.measure import machine
from tools import lint, store


@pytest.fixture(autouse=True)
def repository(monkeypatch):
    """The environment of later tests is not touched, the address is unset, the machine quiet."""
    monkeypatch.setattr(machine, "wait_until_quiet", lambda: "")
    monkeypatch.setattr(store, "address", lambda: "")
    monkeypatch.setenv("LESSONS_LIB_STORING", "0")


def test_a_stored_lesson_keeps_its_ids_and_the_house_rules(write_lesson):
    lesson = write_lesson("00_a_lesson", "import sys\nprint(tokens)\nprint('noise', file=sys.stderr)", "tokens + 1")
    before = lesson.read()
    before.metadata["papermill"] = {"left": "over"}
    before.cells[-1].metadata["execution"] = {"started": "now"}
    before.cells[-2].metadata.update(tags=["hide-input"], jupyter={"source_hidden": True, "outputs_hidden": False})
    store.write(before, lesson.path)
    assert store.store([lesson]) == 0
    now = lesson.read()
    assert lint.problems(lesson) == []
    assert [cell.id for cell in now.cells] == [cell.id for cell in before.cells]
    assert [cell.outputs[0].get("text") for cell in now.cells[-2:-1]] == ["3\n"]
    assert now.cells[-1].outputs[0].data == {"text/plain": "4"}
    assert [len(cell.outputs) for cell in now.cells[-2:]] == [1, 1]
    assert now.cells[-2].metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}
    assert now.cells[-1].metadata == {} and set(now.metadata) == {"kernelspec", "language_info", store.CODE}


def test_storing_twice_gives_the_same_bytes_and_text_that_was_streamed_in_pieces_is_one(write_lesson):
    lesson = write_lesson("00_a_lesson", "import time\nfor c in 'abc':\n    print(c, flush=True)\n    time.sleep(0.3)")
    assert store.store([lesson]) == 0
    once = lesson.path.read_bytes()
    assert [output.text for output in lesson.read().cells[-1].outputs] == ["a\nb\nc\n"]
    store.store([lesson])
    assert lesson.path.read_bytes() == once
    assert once.endswith(b"}\n") and b'\n "cells"' in once and json.loads(once)["nbformat_minor"] == 5


@pytest.mark.parametrize("source, said", [
    ("1 / 0", "FAILED: ZeroDivisionError"), ("import os\nos._exit(1)", "FAILED: its kernel died"),
])  # fmt: skip
def test_a_failing_lesson_is_left_as_it_was_and_the_others_are_stored(write_lesson, capsys, source, said):
    broken, sound = write_lesson("00_broken", "print(tokens)", source), write_lesson("01_sound", "print(tokens)")
    before = broken.path.read_bytes(), sound.path.read_bytes()
    assert store.store([broken, sound]) == 1
    assert broken.path.read_bytes() == before[0] and sound.path.read_bytes() != before[1]
    output = capsys.readouterr().out
    assert said in output and "left as they were: 00_broken" in output


def test_a_lesson_is_not_stored_while_other_programs_load_the_machine(write_lesson, capsys, monkeypatch):
    lesson = write_lesson("00_a_lesson", "print(tokens)")
    before = lesson.path.read_bytes()
    monkeypatch.setattr(machine, "wait_until_quiet", lambda: "Other programs use 1.0 of 2 cores")
    assert store.store([lesson]) == 1 and lesson.path.read_bytes() == before
    assert "FAILED: Other programs use" in capsys.readouterr().out


def test_a_lesson_with_a_figure_that_cannot_be_read_is_not_stored(write_lesson, capsys):
    source = """from lessons_lib.course.display import display
from lessons_lib.course.figures import axes
ax = axes()
ax.text(0.5, 0.5, "one"), ax.text(0.5, 0.5, "other")
display(ax, "two words")"""
    lesson = write_lesson("00_a_lesson", source)
    before = lesson.path.read_bytes()
    assert store.store([lesson]) == 1 and lesson.path.read_bytes() == before
    assert "'one' and 'other' overlap" in capsys.readouterr().out


@pytest.mark.parametrize(
    "data, kept",
    [
        ({"text/plain": "1"}, {"text/plain"}),
        ({"image/png": "a", "image/svg+xml": "<svg/>", "text/plain": "f"}, {"image/png", "text/plain"}),
        ({"application/vnd.jupyter.widget-view+json": {}, "text/plain": "IntSlider()"}, None),
        (
            {"application/vnd.lessons-lib.scores+json": [], "text/html": "x"},
            {"application/vnd.lessons-lib.scores+json", "text/html"},
        ),
    ],
)
def test_outputs_lose_their_live_and_drawn_forms(data, kept):
    output = new_output("display_data", data)
    assert store.keeps(output) is (kept is not None)
    assert kept is None or set(output.data) == kept
