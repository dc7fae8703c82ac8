"""Tables: numbers that read well, and cells that cannot break the page."""

import pytest

from lessons_lib.measure import tables


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"), (1, "1"), (0.01234, "0.0123"), (3.14159, "3.14"), (99.96, "100"), (123.4, "123"),
        (134_479_872, "134,479,872"), (1e-7, "1e-07"), (-2.5, "-2.5"), (8.0, "8"),
    ],
)  # fmt: skip
def test_numbers_show_the_digits_that_matter(value, text):
    assert tables.number(value) == text


def test_text_columns_line_up():
    assert tables.text(("a", "bb"), [["long", "x"]]) == "a     bb\nlong  x"


def test_markdown_escapes_pipes():
    assert tables.markdown(("a",), [["x|y"]]).splitlines()[-1] == "| x\\|y |"


def test_html_escapes_what_a_cell_says(tmp_path):
    path, _ = tables.write_page(tmp_path / "a.html", "a<b", ["1 < 2", (("h",), [["<script>"]])])
    page = path.read_text()
    assert "<script>" not in page and "1 &lt; 2" in page and "<title>a&lt;b</title>" in page
