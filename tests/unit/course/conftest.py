"""What tests of exercises, and of what lessons build, share."""

import pytest

from lessons_lib.course import exercises
from lessons_lib.course.lessons import find, select


@pytest.fixture
def checked(capsys):
    """checked(name of an exercise, attempt) -> what is printed of the attempt."""

    def check(name: str, attempt) -> str:
        exercises.check(name, attempt)
        return capsys.readouterr().out

    return check


@pytest.fixture(scope="session")
def built():
    """built(number of a lesson) -> the names that its cells define: those whose id begins with "build-"."""

    def names(number: str) -> dict:
        [lesson] = select(find(), [number])
        cells = [cell.source for cell in lesson.read().cells if cell.get("id", "").startswith("build-")]
        space = {"__name__": "lesson"}
        exec("\n".join(["import torch", *cells]), space)
        return space

    return names
