"""The exercises of the stored lessons: stubs can be attempted, nonsense fails, folded solutions pass."""

import inspect
import re

import pytest

from lessons_lib.course import exercises
from lessons_lib.course.lessons import find

CALL = re.compile(r'^check\("([\w.]+)", (\w+)\)', re.M)
HINT = r"(?:<details><summary>Hint</summary>\n.*?</details>\s*)?"
SOLUTION = re.compile(HINT + r"<details><summary>Solution.*?</summary>\n.*?```python\n(.*?)```.*</details>\s*", re.S)
IMPORT = re.compile(r"^(?:import|from) [^(\n]+(?:\([^)]*\))?$", re.M)


def found():
    """(exercise, function's name, cell of its stub, cell below it, the lesson's imports so far) of every lesson."""
    for lesson in find():
        cells = lesson.read().cells
        for at, cell in enumerate(cells):
            before = "\n".join(c.source for c in cells[:at] if c.cell_type == "code")
            for name, function in CALL.findall(cell.source if cell.cell_type == "code" else ""):
                below = cells[at + 1].source if cells[at + 1].cell_type == "markdown" else ""
                yield pytest.param(name, function, cell.source, below, IMPORT.findall(before), id=name)


@pytest.mark.parametrize(("name", "function", "stub", "below", "imports"), list(found()))
def test_an_exercise_can_be_attempted_checks_itself_and_has_a_folded_solution(
    name, function, stub, below, imports, capsys, checked
):
    space = {}
    exec("\n".join(["import math", *imports]), space)
    exec(stub, space)
    assert capsys.readouterr().out == f"{name}: not attempted yet\n"
    assert checked(name, lambda *given: "nonsense").startswith(f"{name}: not yet")
    asked = inspect.signature(space[function])
    folded = SOLUTION.match(below)
    assert folded, "the cell below an exercise is its solution, folded"
    exec(folded.group(1), space)
    assert [*inspect.signature(space[function]).parameters] == [*asked.parameters]
    assert checked(name, space[function]) == f"{name}: passed\n"


LESSONS = find()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_lesson_has_three_or_four_exercises_and_asks_every_one_that_can_be_checked(lesson):
    with pytest.raises(ValueError):
        exercises.check("none", print)  # loads all checkers
    known = sorted(name for name in exercises.CHECKERS if name.startswith(f"{lesson.number}."))
    asked = [name for cell in lesson.read().cells for name, _ in CALL.findall(cell.source)]
    assert asked == known == [f"{lesson.number}.{i}" for i in range(1, len(asked) + 1)] and len(asked) in (3, 4)
