"""The site as a whole: built from a few lessons, and its pages for modules and names."""

import base64
import io
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from PIL import Image

from lessons_lib.course.site import build, reference, stored_lessons
from lessons_lib.measure.scorecard import MIME


def png() -> str:
    stream = io.BytesIO()
    Image.new("RGB", (8, 4)).save(stream, "png")
    return base64.b64encode(stream.getvalue()).decode()


ALT = "Time $t$ < *bytes*, [as measured]"
CELLS = [
    new_markdown_cell("## Predict\n\nAs in $\\frac{a}{b} < 1$, arXiv 1706.03762; \\$5 a token.\n\n$$x^2$$"),
    new_markdown_cell("<details><summary>Solution</summary>\n\nIt is `7`, **surely**.\n\n</details>"),
    new_code_cell(
        "from lessons_lib.data import held_out\nprint(1)",
        outputs=[
            new_output("stream", name="stdout", text="one line\n"),
            new_output(
                "display_data",
                {"image/png": png(), "text/plain": ALT},
                metadata={"image/png": {"alt": ALT, "width": 40}},
            ),
            new_output("display_data", {MIME: [], "text/html": "<table><tr><td>rows</td></tr></table>"}),
        ],
    ),
    new_code_cell("Markdown(text)", outputs=[new_output("display_data", {"text/markdown": "## Summary\n\n$y$ is 3."})]),
]


@pytest.fixture
def lesson(write_lesson):
    """A lesson with all that a page must be able to show."""
    lesson = write_lesson("00_a_lesson")
    nb = lesson.read()
    nb.cells += CELLS
    nbformat.write(nb, lesson.path)
    return lesson


def test_a_small_site_is_built_whole(lesson, write_lesson, tmp_path, capsys):
    (tmp_path / "scorecard.md").write_text("# Scorecard\n\nof this very machine\n")
    status = build.build(tmp_path, [lesson, write_lesson("00x_its_appendix")], ["data"])
    assert (status, capsys.readouterr().err) == (0, "")
    site = tmp_path / "site"
    page, home, reference = (
        (site / name).read_text(encoding="utf-8")
        for name in ("lessons/00_a_lesson.html", "index.html", "reference/data.html")
    )
    assert f'alt="{ALT.replace("<", "&lt;")}"' in page and "width: 40px" in page  # alt text and width of a figure
    assert page.count("<math") == 3 and "$" not in re.sub(r"<[^>]*>", "", page.replace("$5", ""))
    assert re.search(r"<details>.*<code.*7.*<strong>surely.*</details>", page, re.S)
    assert "one line" in page and "<td>rows</td>" in page and "Summary</h" not in page and "<h2>Summary" in page
    assert "find_spec" not in page  # the silent set-up cell
    assert "../reference/data.html#module-lessons_lib.data" in page and "../glossary.html#term-roofline" in page
    assert 0 < home.find("lessons/00_a_lesson.html") < home.find("lessons/00x_its_appendix.html")
    assert "How much is it?" in home
    assert "lessons_lib.data" in reference and "<span" in reference
    assert "of this very machine" in (site / "scorecard_here.html").read_text(encoding="utf-8")
    assert (site / "search.html").exists() and "roofline" in (site / "searchindex.js").read_text(encoding="utf-8")
    (download,) = site.rglob("00_a_lesson.ipynb")
    assert download.read_bytes() == lesson.path.read_bytes()


def test_what_is_wrong_is_said_and_fails(lesson, tmp_path, capsys):
    nb = lesson.read()
    nb.cells.append(
        new_markdown_cell("$\\unknown{x}$, [gone](gone.html), [far](https://), arXiv 9912.00001, ![](x.png)")
    )
    nbformat.write(nb, lesson.path)
    assert build.build(tmp_path, [lesson], []) == 1
    said = capsys.readouterr().err
    for problem in (
        "9912.00001 is named in 00",
        "cannot be rendered: \\unknown{x}",
        "gone.html",
        "not an address",
        "x.png",
    ):
        assert problem in said


def test_a_cell_that_ends_with_a_summary_is_folded_behind_it(lesson, tmp_path):
    stored_lessons.write(lesson, tmp_path)
    nb = nbformat.read(tmp_path / "00_a_lesson.ipynb", as_version=4)
    summary = next(i for i, cell in enumerate(nb.cells) if cell.source.startswith("## Summary"))
    assert nb.cells[summary + 1].metadata["tags"] == ["hide-input"] and nb.cells[summary + 1].outputs == []


def test_the_modules_that_a_lesson_imports_are_listed_with_those_named_in_a_package():
    code = "from lessons_lib import load\nfrom lessons_lib.measure import clock, roofline\n"
    code += "from lessons_lib.paths import cache_dir"
    nb = nbformat.v4.new_notebook(cells=[new_code_cell(code)])
    found = ["lessons_lib.measure", "lessons_lib.measure.clock", "lessons_lib.measure.roofline", "lessons_lib.paths"]
    assert stored_lessons.imported(nb) == found


def test_every_module_has_its_place_in_the_reference():
    pages = "".join(reference.page(room) for room in reference.rooms())
    assert all(f".. automodule:: {name}\n" in pages for name in reference.modules() if name != "lessons_lib")
    assert reference.rooms()[:2] == ["course", "widgets"]


def test_the_packages_own_names_lead_to_where_they_are_made():
    assert reference.home(r"\ :py:obj:`Greedy`\ ") == r"\ :py:obj:`Greedy <lessons_lib.decoding.sampling.Greedy>`\ "
    assert reference.home(":py:obj:`data`, other") == ":py:obj:`data`, other"
