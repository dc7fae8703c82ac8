"""The drawings: legible, described, and each a file in imgs/."""

import pytest

from lessons_lib.course import display
from lessons_lib.paths import ROOT
from tools.drawings import GALLERY


@pytest.mark.parametrize("name", GALLERY)
def test_all_text_of_a_drawing_can_be_read_and_its_alt_text_is_sentences(name):
    figure = GALLERY[name]()
    assert display.problems(figure) == []
    alt = figure.get_label()
    assert 80 < len(alt) < 700 and alt.endswith(".") and "  " not in alt


def test_imgs_holds_every_drawing_and_nothing_else():
    assert {path.stem for path in (ROOT / "imgs").iterdir()} == set(GALLERY)
