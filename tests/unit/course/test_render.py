"""A lesson as one page: nothing requested, formulas as MathML, solutions folded."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from lessons_lib.course import render


def page_of(write_lesson, *cells) -> str:
    lesson = write_lesson("00_lesson")
    nb = lesson.read()
    nb.cells += cells
    nbformat.write(nb, lesson.path)
    render.write_page(lesson.path, lesson.path.with_suffix(".html"))
    return lesson.path.with_suffix(".html").read_text(encoding="utf-8")


def test_a_page_requests_nothing_from_elsewhere(write_lesson):
    page = page_of(write_lesson, new_markdown_cell("[a link](https://example.org) is allowed, $x$ too"))
    tags = re.findall(r"<(?:script|img|iframe|link)[^>]*>", page)
    assert not [tag for tag in tags if re.search(r"(?:src|href)=\"(?:https?:)?//", tag)]
    assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", page)
    assert "<title>00 A lesson</title>" in page


def test_formulas_become_mathml(write_lesson):
    text = "Inline $2 b S L D$ and\n\n$$\\frac{a_1}{b^2} \\le \\sum_i x_i$$\n\n`$code$` and \\$5 stay."
    page = page_of(write_lesson, new_markdown_cell(text))
    assert page.count("<math") == 2 and 'display="block"' in page
    assert re.search(r"<mfrac>.*a.*</mfrac>", page, re.S) and "\\frac" not in page
    assert "$code$" in page and "$5" in page


def test_a_formula_with_less_than_or_ampersand_is_escaped_once(write_lesson):
    page = page_of(write_lesson, new_markdown_cell("$a < b$ and\n\n$$\\begin{matrix} 1 & 2 \\\\ 3 & 4 \\end{matrix}$$"))
    assert "&lt;" in page and "&amp;lt;" not in page
    assert page.count("<mtd>") == 4


def test_aligned_equations_become_rows():
    element = render.math("\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}", "block")
    assert element.count("<mtr>") == 2 and element.count("<mtd") == 4


@pytest.mark.parametrize("latex", ["\\left( x", "\\unknown{x}", "a & b < c"])
def test_an_unreadable_formula_is_shown_as_it_was_written(latex):
    shown = latex.replace("&", "&amp;").replace("<", "&lt;")
    assert render.mathml(latex) is None and render.math(latex) == f"<code>{shown}</code>"


def test_a_figures_alt_text_and_width_reach_the_page(write_lesson):
    picture = {"image/png": "iVBORw0KGgo=", "text/plain": "Figure"}
    output = new_output("display_data", picture, metadata={"image/png": {"alt": "Time < bytes", "width": 300}})
    page = page_of(write_lesson, new_code_cell("draw()", outputs=[output]))
    tag = re.search(r"<img[^>]*>", page).group()
    assert ('alt="Time &lt; bytes"' in tag or 'alt="Time < bytes"' in tag) and 'width="300"' in tag


def test_a_folded_solution_stays_inside_its_fold(write_lesson):
    cell = new_markdown_cell("<details><summary>Solution</summary>\n\nIt is $x$.\n\n</details>\n\nAfter.")
    page = page_of(write_lesson, cell)
    assert re.search(r"<details>.*It is <math.*</details>.*After", page, re.S)
    assert re.search(r"<details>.*</details>", page, re.S).group().count("It is") == 1


def test_the_set_up_cell_is_shown_only_if_it_said_something(write_lesson):
    assert "find_spec" not in page_of(write_lesson)
    lesson = write_lesson("00_lesson")
    nb = lesson.read()
    nb.cells[1].outputs = [new_output("stream", name="stdout", text="installing")]
    nbformat.write(nb, lesson.path)
    render.write_page(lesson.path, lesson.path.with_suffix(".html"))
    assert "find_spec" in lesson.path.with_suffix(".html").read_text(encoding="utf-8")


def test_attachments_are_inside_the_page(write_lesson):
    cell = new_markdown_cell("![a drawing](attachment:x.png)", attachments={"x.png": {"image/png": "iVBORw0KGgo="}})
    assert re.search(r'<img[^>]*src="data:image/png;base64,iVBORw0KGgo="', page_of(write_lesson, cell))


@pytest.mark.parametrize("text, title", [("# 02 KV cache\n\ntext", "02 KV cache"), ("no heading", "")])
def test_the_title_is_the_first_heading(text, title):
    assert render.title(nbformat.v4.new_notebook(cells=[new_markdown_cell(text)])) == title
