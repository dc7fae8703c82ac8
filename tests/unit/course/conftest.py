"""What tests of exercises share."""

import pytest

from lessons_lib.course import exercises


@pytest.fixture
def checked(capsys):
    """checked(name of an exercise, attempt) -> what is printed of the attempt."""

    def check(name: str, attempt) -> str:
        exercises.check(name, attempt)
        return capsys.readouterr().out

    return check
