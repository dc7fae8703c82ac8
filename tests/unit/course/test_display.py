"""Showing a figure: with alt text, as one picture, and with all of its text legible when it is stored."""

import base64
import io

import IPython.display
import matplotlib.pyplot as plt
import nbclient
import nbformat
import pytest
from PIL import Image

from lessons_lib.course.display import display, problems
from lessons_lib.course.figures import axes


@pytest.fixture
def shown(monkeypatch):
    calls = []
    monkeypatch.setattr(IPython.display, "display", lambda data, metadata, raw: calls.append((data, metadata)))
    return calls


def test_in_batch_a_figure_is_a_png_with_its_alt_text_beside_it(shown, monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    display(axes(), "empty axes")
    [(data, metadata)] = shown
    assert set(data) == {"image/png", "text/plain"} and data["text/plain"] == "empty axes"
    assert metadata["image/png"] == {"alt": "empty axes", "width": 704}
    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).width == 1408


def test_live_a_figure_is_an_image_tag_with_escaped_alt_text(shown, monkeypatch):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    display(axes(), 'a < b, "quoted"')
    [(data, metadata)] = shown
    assert set(data) == {"text/html", "text/plain"} and metadata == {}
    assert 'alt="a &lt; b, &quot;quoted&quot;"' in data["text/html"]
    assert 'src="data:image/png;base64,' in data["text/html"]


def test_a_figure_needs_an_alt_text(shown):
    with pytest.raises(ValueError, match="alt"):
        display(axes(), "")


def test_a_figure_with_text_that_cannot_be_read_is_shown_but_not_stored(shown, monkeypatch):
    def overlapping():
        ax = axes()
        for word in ("one", "other"):
            ax.text(0.5, 0.5, word)
        return ax

    display(overlapping(), "two words")
    monkeypatch.setenv("LESSONS_LIB_STORING", "1")
    display(axes(), "empty axes")
    with pytest.raises(ValueError, match="'one' and 'other' overlap"):
        display(overlapping(), "two words")
    assert len(shown) == 2


def test_a_figure_that_was_shown_is_closed(shown):
    ax = axes()
    display(ax, "empty axes")
    assert not plt.fignum_exists(ax.figure.number)


def test_our_first_figure_leaves_later_plots_of_a_notebook_visible():
    imports = "from lessons_lib.course.figures import axes; import matplotlib.pyplot as plt"
    cells = [imports, "axes();", "plt.plot([1, 2]);"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    for cell in notebook.cells[1:]:
        assert [set(output.data) for output in cell.outputs] == [{"image/png", "text/plain"}]


# Legibility


def covered_label(ax):
    ax.plot([0, 1], label="a line")
    ax.text(0.02, 0.93, "hidden", transform=ax.transAxes)
    ax.legend(loc="upper left")


def label_on_a_key(ax):
    ax.plot([0, 1], label="a line")
    ax.legend(loc="lower right", frameon=False)
    ax.figure.canvas.draw()
    key = ax.get_legend().legend_handles[0].get_window_extent().transformed(ax.transAxes.inverted())
    ax.text(key.x0, key.y0, "on the key", transform=ax.transAxes, va="center")


def clipped_by_axes(ax):
    ax.set_title("room\nabove", loc="right")
    ax.text(0.1, 0.98, "half of it", clip_on=True)


UNREADABLE = {
    "left of the figure": (lambda ax: ax.text(-0.5, 0.5, "outside"), "'outside' is cut off"),
    "title too long": (lambda ax: ax.set_title("long " * 30), "is cut off"),
    "by its axes": (clipped_by_axes, "'half of it' is cut off"),
    "under a legend": (covered_label, "a legend covers 'hidden'"),
    "on a key of a legend without frame": (label_on_a_key, "a legend covers 'on the key'"),
    "two texts": (
        lambda ax: [ax.text(0.5, 0.5, "first"), ax.text(0.52, 0.52, "second")],
        "'first' and 'second' overlap",
    ),
    "text on a tick's label": (lambda ax: ax.text(0.2, -0.05, "below"), "overlap"),
    "ticks too close": (lambda ax: ax.set_xticks([0.5, 0.53], ["one half", "more"]), "'one half' and 'more' overlap"),
    "turned ticks too close": (
        lambda ax: ax.set_xticks([0.5, 0.51], ["one half", "more"], rotation=45),
        "'one half' and 'more' overlap",
    ),
}


@pytest.mark.parametrize("draw, said", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_text_that_cannot_be_read_is_named(draw, said):
    ax = axes()
    draw(ax)
    assert any(said in problem for problem in problems(ax.figure))


def legend_beside(ax):
    ax.plot([0, 1], label="a line")
    ax.text(0.9, 0.1, "free")
    ax.legend(loc="upper left")


def bars_in_a_legend_without_frame(ax):
    ax.errorbar([1, 2], [1, 2], yerr=0.1, label="measured")
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))


def an_arrow_over_a_text(ax):
    ax.text(0.5, 0.5, "crossed", va="center")
    ax.annotate("from here", (0.9, 0.5), (0.1, 0.5), va="center", arrowprops={"arrowstyle": "->"})


def hidden_texts(ax):
    ax.text(-0.5, 0.5, "outside").set_visible(False)
    ax.text(-0.5, 0.5, " ")
    ax.annotate("its point lies outside", (-5, 0.5))


def switched_off(ax):
    ax.set_xticks([0.5, 0.51], ["one half", "more"])
    ax.set_axis_off()
    other = ax.figure.add_axes((0.1, 0.1, 0.5, 0.5))
    other.set_xticks([0.5, 0.51], ["one half", "more"])
    other.set_visible(False)


def twins(ax):
    other = ax.twinx()
    other.yaxis.tick_left()
    other.set_ylim(ax.get_ylim())


READABLE = {
    "nothing but ticks": lambda ax: None,
    "a legend beside a text": legend_beside,
    "error bars in a legend": bars_in_a_legend_without_frame,
    "an arrow's way": an_arrow_over_a_text,
    "what is not drawn": hidden_texts,
    "axes that are switched off": switched_off,
    "ticks outside the limits": lambda ax: (ax.set_xticks([0.5, 5], ["in", "out " * 40]), ax.set_xlim(0, 1)),
    "no tick at all on a log axis": lambda ax: (ax.set(xscale="log", xlim=(1, 2)), ax.set_xticks([], minor=True)),
    "turned ticks side by side": lambda ax: ax.set_xticks(
        [0.5, 0.6], ["one half, and more", "three fifths, about"], rotation=45
    ),
    "the same ticks twice": twins,
}


@pytest.mark.parametrize("draw", READABLE.values(), ids=READABLE.keys())
def test_a_figure_whose_texts_can_be_read_has_no_problems(draw):
    ax = axes()
    draw(ax)
    assert problems(ax.figure) == []


def test_a_figure_looks_the_same_after_the_check():
    turned = axes().text(0.5, 0.5, "turned", rotation=30)
    before = turned.figure.dpi
    problems(turned.figure)
    assert (turned.figure.dpi, turned.get_rotation()) == (before, 30)
