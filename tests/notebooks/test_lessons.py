"""The stored lessons keep the house rules. Executing them is nbval's part: `make test` runs it after these tests."""

import pytest

from lessons_lib.course.lessons import find
from tools import lint


@pytest.mark.parametrize("lesson", find(), ids=lambda lesson: lesson.name)
def test_the_stored_lesson_keeps_the_house_rules(lesson):
    assert lint.problems(lesson) == []
