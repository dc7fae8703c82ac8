"""A docstring as a page: prose, names, formulas' lines, lists and examples."""

import docutils.core
import pytest

from lessons_lib.course.site.docstrings import to_rst


def rst(text: str) -> str:
    return "\n".join(to_rst(text.splitlines())).strip("\n")


def test_prose_is_one_paragraph_and_nothing_in_it_is_markup():
    assert rst("A * b|c|,\n**options and max_ of x_y") == r"A \* b\|c\|, \*\*options and max\_ of x\_y"


@pytest.mark.parametrize("text", ["E. g. this begins with a letter.", "1. is no list.", "(a) neither."])
def test_a_letter_with_a_dot_begins_no_list(text):
    assert "enumerated" not in docutils.core.publish_string(rst(text), writer="pseudoxml").decode()


def test_names_lead_somewhere_and_other_code_is_literal():
    assert rst("see `compiler.settings`, `f(x) + 1`") == r"see \ :py:obj:`compiler.settings`\ , \ ``f(x) + 1``\ "


def test_an_arxiv_number_leads_to_its_paper():
    said = rst("Someone (arXiv 1706.03762), 2.2 of 0.1234.")
    assert "(arXiv `1706.03762 <https://arxiv.org/abs/1706.03762>`__), 2.2 of 0.1234." in said


def test_indented_lines_are_code_even_without_a_blank_line_before_them():
    assert rst("Per run:\n    a = b * c\nand so on") == "Per run:\n\n::\n\n        a = b * c\n\nand so on"


def test_examples_stay_as_they_are():
    assert rst(">>> f(*x)\n{'a': 1}") == ">>> f(*x)\n{'a': 1}"


def test_columns_become_a_list_of_definitions():
    said = rst("row          `step`, the body\ntree, trees  what is\n             guessed\na long name  words")
    assert said.splitlines() == [
        r"\ :py:obj:`row`\ ",
        r"    \ :py:obj:`step`\ , the body",
        r"\ :py:obj:`tree`\ , \ :py:obj:`trees`\ ",
        "    what is guessed",
        "a long name",
        "    words",
    ]


def test_a_list_with_dashes_stays_one():
    assert rst("- a*b\n- `c d`") == "- a\\*b\n- \\ ``c d``\\ "
