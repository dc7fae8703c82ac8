"""One quantity has one value wherever a program executes a lesson."""

import pytest

from lessons_lib.course.quantities import Quantities


def test_a_second_value_is_refused_while_a_program_executes_the_lesson(monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    found = Quantities()
    found["step"] = 34.4
    found["step"] = 34.4
    with pytest.raises(ValueError, match=r"'step' is already 34.4.*42.1"):
        found["step"] = 42.1
    assert found == {"step": 34.4}


def test_a_reader_may_run_a_cell_again(monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "0")
    found = Quantities()
    found["step"] = 34.4
    found["step"] = 42.1
    assert found == {"step": 42.1}
