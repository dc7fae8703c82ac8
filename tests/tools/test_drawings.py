"""The drawings: legible, described, and each a file in imgs/."""

import re

import pytest

from lessons_lib.course import display
from lessons_lib.course.lessons import find
from lessons_lib.measure.results import Result
from lessons_lib.paths import ROOT
from tools.drawings import GALLERY, predictions


@pytest.mark.parametrize("name", GALLERY)
def test_all_text_of_a_drawing_can_be_read_and_its_alt_text_is_sentences(name):
    figure = GALLERY[name]()
    assert display.problems(figure) == []
    alt = figure.get_label()
    assert 80 < len(alt) < 700 and alt.endswith(".") and "  " not in alt


def test_imgs_holds_every_drawing_and_nothing_else():
    assert {path.stem for path in (ROOT / "imgs").iterdir()} == set(GALLERY)


def test_every_drawing_is_used_by_a_lesson_or_a_page():
    attached = {name for lesson in find() for cell in lesson.read().cells for name in cell.get("attachments", {})}
    pages = "".join(page.read_text(encoding="utf-8") for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
    unused = {path.name for path in (ROOT / "imgs").iterdir()} - attached - set(re.findall(r"imgs/([\w.]+)", pages))
    assert unused == set(), "remove the drawing and the function of tools/drawings that makes it"


def test_the_picture_of_predictions_names_the_worst_misses_beside_their_points():
    near = [Result("01", f"near {i}", "s", 10.0**i, 1.1 * 10.0**i) for i in range(-2, 4)]
    off = [Result("02", "far", "s", 1, 7), Result("02", "far, too", "s", 1.1, 7.5), Result("03", "low", "s", 9, 2)]
    figure = predictions.draw([*near, *off], predictions.misses([*near, *off]))
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "6 of 9 predictions are within a factor of 1.25" in figure.axes[0].get_title("left")
    assert {"a", "b", "c"} <= {*words} and any("c  low (lesson 03): 4.5x" in text for text in words)
    assert display.problems(figure) == [] and "far (lesson 02), off by a factor of 7.0" in figure.get_label()
