"""The exercises of the stored lessons: folded solutions pass, stubs count as not attempted, nonsense fails."""

import re

import pytest

from lessons_lib.course.exercises import check
from lessons_lib.course.lessons import find

CALL = re.compile(r'^check\("([\w.]+)", (\w+)\)', re.M)
SOLUTION = re.compile(r"<summary>Solution.*?```python\n(.*?)```", re.S)
IMPORT = re.compile(r"^(?:import|from) .+$", re.M)


def exercises():
    """(exercise, name of the function, solution, imports of the lesson) of every lesson."""
    for lesson in find():
        cells = lesson.read().cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        for (name, function), solution in zip(CALL.findall(code), SOLUTION.findall(text), strict=True):
            yield pytest.param(name, function, solution, IMPORT.findall(code), id=name)


@pytest.mark.parametrize(("name", "function", "solution", "imports"), list(exercises()))
def test_the_folded_solution_passes_and_nonsense_does_not(name, function, solution, imports, capsys):
    space = {}
    exec("\n".join(["import math", *(line for line in imports if not line.endswith("("))]), space)
    exec(solution, space)
    check(name, space[function])
    assert capsys.readouterr().out == f"{name}: passed\n"
    check(name, lambda *given: "nonsense")
    assert capsys.readouterr().out.startswith(f"{name}: not yet")
