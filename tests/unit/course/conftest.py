"""Small notebooks for the course's machinery."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lessons_lib.course import colab, exercises
from lessons_lib.course.lessons import Lesson

PARAMETERS = """model: str = "tiny"
device: str = "auto"
dtype: str = "auto"
seed: int = 0
tokens: int = 3
rate: float = 0.5"""


def notebook(*sources: str, title: str = "# 00 A lesson\n\nHow much is it?", **more) -> nbformat.NotebookNode:
    """A lesson that keeps the house rules: title, set-up cell, parameters and `more`, then cells with these sources."""
    nb = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    parameters = "\n".join([PARAMETERS, *(f"{name} = {value!r}" for name, value in more.items())])
    tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    nb.cells = [new_markdown_cell(title), tagged, *(new_code_cell(source) for source in sources)]
    colab.refresh(nb, "00_a_lesson", "")
    for count, cell in enumerate((c for c in nb.cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
    return nb


@pytest.fixture
def write_lesson(tmp_path):
    """write_lesson(name, *sources) -> Lesson, in a folder of its own."""

    def write(name: str, *sources: str, **options) -> Lesson:
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook(*sources, **options), path)
        return Lesson(path)

    return write


@pytest.fixture
def sound_lesson():
    """A notebook without problems, to break."""
    return notebook("print(tokens)", "seed + 1")


@pytest.fixture
def checked(capsys):
    """checked(name of an exercise, attempt) -> what is printed of the attempt."""

    def check(name: str, attempt) -> str:
        exercises.check(name, attempt)
        return capsys.readouterr().out

    return check
