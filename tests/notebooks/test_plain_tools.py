"""nbval and papermill straight on a notebook, without the course's commands."""

import ast
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lessons_lib.course.lessons import find, parameters
from lessons_lib.paths import ROOT

LEAST = re.compile(r"^(\w+) *(?::[^=#]*)?=.*#.*\bat least (\d+)", re.MULTILINE)  # what the comments of parameters say
FIGURE = """\
from lessons_lib import progress
from lessons_lib.course.display import display
from lessons_lib.course.figures import axes
ax = axes()
ax.plot([1, 2])
display(ax, "a line")"""


@pytest.fixture
def run(tmp_path):
    """Runs a command in an empty folder with no variable of ours in the environment -> (status, what it printed)."""

    def call(*command):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LESSONS_LIB_", "PYTEST_"))}
        call = [sys.executable, "-m", *map(str, command)]
        done = subprocess.run(call, cwd=tmp_path, env=clean, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return call


def notebook(path, *sources, checked="", parameters="x = 1"):
    """A notebook with these cells, the last of which shall print `checked`."""
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(new_code_cell, sources)]
    cells[-1].metadata["tags"] = ["nbval-check-output"]
    cells[-1].execution_count, cells[-1].outputs = len(cells), [new_output("stream", text=checked)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), path)
    return path


def test_nbval_runs_cells_in_their_order_times_them_once_and_draws_no_bars(run, tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    counting = ["x += 1; assert x == 2", "x *= 5; assert x == 10", "x -= 3; assert x == 7", "x **= 2; assert x == 49"]
    shown = "import os\nfrom lessons_lib.progress import batch\nprint(x, os.environ['LESSONS_LIB_QUICK'], batch())"
    notebook(tmp_path / "lesson.ipynb", *counting, shown, checked="49 1 True\n")
    status, said = run("pytest", "--nbval-lax", "-q", "lesson.ipynb")
    assert status == 0, said


def test_papermill_leaves_figures_as_png_with_their_alt_text_and_no_bars(run, tmp_path):
    notebook(tmp_path / "lesson.ipynb", FIGURE, "for _ in progress.bar([1]): pass", "print(x)")
    status, said = run("papermill", "lesson.ipynb", "out.ipynb", "-p", "x", "3")
    assert status == 0, said
    drawn, bar, printed = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[-3:]
    assert {kind for output in drawn.outputs for kind in output.get("data", {})} == {"image/png", "text/plain"}
    assert drawn.outputs[0].metadata["image/png"]["alt"] == "a line"
    assert bar.outputs == [] and printed.outputs[0].text == "3\n"


@pytest.mark.parametrize("lesson", find(), ids=lambda lesson: lesson.name)
def test_a_lesson_itself_refuses_parameters_out_of_range_by_name(lesson):
    nb = lesson.read()
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    [place] = (i for i, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", []))
    following, defaults, least = code[place + 1], parameters(lesson), dict(LEAST.findall(code[place].source))
    checks = [line for line in ast.parse(following.source).body if isinstance(line, ast.Assert)]
    check = compile(ast.Module(checks, []), lesson.name, "exec")
    exec(check, dict(defaults))
    for name, value in defaults.items():
        if name == "seed" or type(value) not in (int, list) or value == []:
            continue
        low = int(least.get(name, 1))
        for given in [value[: low - 1], [0, *value]] if type(value) is list else [low - 1]:
            with pytest.raises(AssertionError, match=rf"\b{name}\b"):
                exec(check, {**defaults, name: given})
