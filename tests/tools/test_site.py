"""The site: a small course built by Sphinx, its figures, formulas and words; nothing on it comes from elsewhere."""

import base64
import io
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from PIL import Image

from lessons_lib.course.lessons import find
from lessons_lib.measure.results import MIME
from lessons_lib.paths import ROOT

ALT = "Time $t$ < *bytes*, [as measured]"
ARXIV = re.compile(r"(?<![\d.])(\d\d(?:0[1-9]|1[0-2])\.\d{4,5})(?![\d.]*\d)")


def png() -> str:
    stream = io.BytesIO()
    Image.new("RGB", (8, 4)).save(stream, "png")
    return base64.b64encode(stream.getvalue()).decode()


def cells():
    """All that a page must be able to show."""
    figure = {"image/png": {"alt": ALT, "width": 40}}
    outputs = [
        new_output("stream", name="stdout", text="one line\n"),
        new_output("display_data", {"image/png": png(), "text/plain": ALT}, metadata=figure),
        new_output("display_data", {"text/markdown": "$y$ is 3."}),
        new_output("display_data", {MIME: [], "text/html": "<table><tr><td>rows</td></tr></table>"}),
    ]
    return [
        new_markdown_cell("## Predict\n\nAs in $\\frac{a}{b} < 1$, arXiv 1706.03762; \\$5 a token.\n\n$$x^2$$"),
        new_markdown_cell("All claims: [RESULTS.md](../RESULTS.md)."),
        new_markdown_cell("![a drawing](attachment:x.png)", attachments={"x.png": {"image/png": png()}}),
        new_markdown_cell("<details><summary>Solution</summary>\n\nIt is `7`, **surely**.\n\n</details>"),
        new_code_cell("print(1)", outputs=outputs),
    ]


@pytest.fixture
def build(write_lesson, tmp_path):
    """build(*cells) -> a process that made the site of a lesson with these cells in tmp_path/site."""

    def made(*cells):
        lesson = write_lesson("00_a_lesson")
        nb = lesson.read()
        nb.cells += cells
        nbformat.write(nb, lesson.path)
        shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("lessons"))
        call = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", tmp_path / "docs", tmp_path / "site"]
        settings = ["-D", f"lessons_folder={lesson.path.parent}"]
        return subprocess.run([*call, *settings], cwd=ROOT, capture_output=True, text=True)

    return made


def test_a_small_site_is_built_whole_and_loads_nothing_from_elsewhere(build, tmp_path):
    done = build(*cells())
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    page = pages["00_a_lesson.html"]
    assert f'alt="{ALT.replace("<", "&lt;")}"' in page and "width: 40px" in page
    assert page.count("<math") == 3 and "$" not in re.sub(r"<[^>]*>", "", page.replace("$5", ""))
    assert re.search(r'alt="a drawing"[^>]*src="../_images/x.png"', page)
    assert re.search(r"<details>.*<code.*7.*<strong>surely.*</details>", page, re.S)
    assert re.search(r'href="results.html"[^>]*>(?:<[^>]*>)*RESULTS.md', page)
    assert "one line" in page and "<td>rows</td>" in page
    assert "find_spec" not in page  # the silent set-up cell
    assert "roofline" in pages["glossary.html"] and "arxiv.org/abs/1706.03762" in pages["references.html"]
    assert 'href="lessons/00_a_lesson.html"' in pages["index.html"] and "scorecard.html" in pages
    assert re.search(r'href="lessons/results.html#[\w-]+"', pages["choose.html"])
    assert re.search(r'<a[^>]*href="\.\./_downloads/[^"]*cache-512-vs-uncached.json"', pages["results.html"])
    loaded = re.findall(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="((?:https?:)?//[^"]*)', "".join(pages.values()))
    styles = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.css"))
    assert loaded + re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//\S+", styles) == []


def test_a_broken_link_and_an_unreadable_formula_fail_the_build(build):
    done = build(new_markdown_cell("$\\unknown{x}$, [gone](gone.html), ![a picture](x.png)"))
    assert done.returncode != 0
    assert all(said in done.stderr for said in ("cannot be rendered: \\unknown{x}", "gone.html", "x.png"))


def test_every_paper_that_lessons_and_code_name_is_among_the_references():
    texts = [cell.source for lesson in find() for cell in lesson.read().cells]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "lessons_lib").rglob("*.py")]
    known = set(re.findall(r"eprint = {(.*)}", (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")))
    assert {number for text in texts for number in ARXIV.findall(text)} <= known
