"""Showing a figure: alt text always, one picture, PNG only when outputs are kept."""

import base64
import io

import IPython.display
import matplotlib.pyplot as plt
import nbclient
import nbformat
import pytest
from PIL import Image

from lessons_lib import figures
from lessons_lib.figures import drawings, output


@pytest.fixture
def shown(monkeypatch):
    calls = []
    monkeypatch.setattr(IPython.display, "display", lambda data, metadata, raw: calls.append((data, metadata)))
    return calls


def test_in_batch_a_figure_is_a_png_with_its_alt_text_beside_it(shown, monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    figures.display(figures.axes(), "empty axes")
    [(data, metadata)] = shown
    assert set(data) == {"image/png", "text/plain"} and data["text/plain"] == "empty axes"
    assert metadata["image/png"] == {"alt": "empty axes", "width": 704}
    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).width == 1408


def test_live_a_figure_is_an_image_tag_with_escaped_alt_text(shown, monkeypatch):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    figures.display(figures.axes(), 'a < b, "quoted"')
    [(data, metadata)] = shown
    assert set(data) == {"text/html", "text/plain"} and metadata == {}
    assert 'alt="a &lt; b, &quot;quoted&quot;"' in data["text/html"]
    assert 'src="data:image/png;base64,' in data["text/html"]


def test_both_forms_are_valid_notebook_outputs(shown, monkeypatch):
    for batch in ("0", "1"):
        monkeypatch.setenv("LESSONS_LIB_BATCH", batch)
        figures.display(figures.axes(), "empty axes")
        data, metadata = shown.pop()
        cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", data, metadata=metadata)])
        nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


def test_a_drawing_brings_its_own_alt_text_and_another_figure_needs_one(shown):
    figures.display(drawings.kv_caching())
    assert shown[0][0]["text/plain"] == drawings.ALT["kv_caching"]
    with pytest.raises(ValueError, match="alt"):
        figures.display(figures.axes())


def test_a_figure_with_text_that_cannot_be_read_is_shown_but_not_stored(shown, monkeypatch):
    def overlapping():
        ax = figures.axes()
        for word in ("one", "other"):
            ax.text(0.5, 0.5, word)
        return ax

    figures.display(overlapping(), "two words")
    monkeypatch.setenv("LESSONS_LIB_STORING", "1")
    figures.display(figures.axes(), "empty axes")
    with pytest.raises(ValueError, match="'one' and 'other' overlap"):
        figures.display(overlapping(), "two words")
    assert len(shown) == 2


def test_a_figure_that_was_shown_is_closed(shown):
    ax = figures.axes()
    figures.display(ax, "empty axes")
    assert not plt.fignum_exists(ax.figure.number)


def test_a_figure_is_stored_twice_as_fine_as_it_is_shown():
    figure = figures.axes((3, 2)).figure
    assert Image.open(io.BytesIO(output.png(figure))).size == (660, 440)
    assert output.width(figure) == 330


def test_our_first_figure_leaves_later_plots_of_a_notebook_visible():
    imports = "from lessons_lib import figures; import matplotlib.pyplot as plt"
    cells = [imports, "figures.axes();", "plt.plot([1, 2]);"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    for cell in notebook.cells[1:]:
        assert [set(output.data) for output in cell.outputs] == [{"image/png", "text/plain"}]
