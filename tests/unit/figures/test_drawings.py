"""The drawings: there, legible by their files' limits, described, and the same bytes each time."""

import io

import pytest
from matplotlib.figure import Figure
from PIL import Image

from lessons_lib.course.display import png, problems
from lessons_lib.course.figures import WIDTH, tint
from lessons_lib.figures import drawings
from lessons_lib.figures.drawings.shapes import UNITS, canvas

NAMES = sorted(drawings.GALLERY)


def test_the_gallery_has_what_readme_and_lessons_ask_for():
    wanted = {"decoder_only_model", "masked_self_attention", "kv_caching", "cache_savings", "one_loop"}
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_is_twice_as_fine_as_shown_small_in_bytes_and_not_empty(name):
    data = png(drawings.GALLERY[name]())
    image = Image.open(io.BytesIO(data))
    assert len(data) <= 150_000
    assert image.width == 1408 and len(image.convert("RGB").getcolors(1 << 24)) > 10


@pytest.mark.parametrize("name", NAMES)
def test_all_text_of_a_drawing_can_be_read_and_is_large_enough(name):
    figure = drawings.GALLERY[name]()
    assert problems(figure) == []
    assert min(text.get_fontsize() for text in figure.axes[0].texts) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_carries_an_alt_text_of_sentences(name):
    alt = drawings.GALLERY[name]().get_label()
    assert alt == drawings.ALT[name] and 80 < len(alt) < 600 and alt.endswith(".") and "  " not in alt


def test_draw_all_writes_every_drawing_and_the_same_bytes_again(tmp_path):
    first = {path.name: path.read_bytes() for path in drawings.draw_all(tmp_path / "imgs")}
    again = {path.name: path.read_bytes() for path in drawings.draw_all(tmp_path / "imgs")}
    assert sorted(first) == [f"{name}.png" for name in NAMES]
    assert first == again


def test_a_drawing_is_made_without_pyplot_so_that_no_notebook_shows_it_twice():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    assert isinstance(drawings.kv_caching(), Figure)
    assert plt.get_fignums() == before


def test_units_of_a_canvas_are_tenths_of_an_inch():
    ax = canvas(30)
    assert ax.figure.get_size_inches().tolist() == [WIDTH, 3.0]
    assert ax.get_xlim() == (0, WIDTH * UNITS) and ax.get_ylim() == (0, 30)


def test_a_tint_lies_between_the_colour_and_white():
    assert tint("#000000", 1) == "#000000" and tint("#000000", 0) == "#ffffff" and tint("#0072b2") != "#0072b2"
