"""The widget shell: settings reach the drawing, alt texts follow, batch runs see a still figure."""

import IPython.display
import matplotlib.pyplot as plt
import pytest

from lessons_lib.figures import axes
from lessons_lib.widgets import controls
from lessons_lib.widgets.controls import Slider, show

CONTROLS = {
    "n": Slider("length", (16, 1024), 16, "tokens"),
    "kind": Slider("kind", ("plain", "fast"), "plain"),
}


class Recorder:
    """Draws empty axes, and remembers the settings."""

    def __init__(self):
        self.calls = []

    def __call__(self, n, kind):
        self.calls.append((n, kind))
        return axes()


def describe(n, kind):
    return f"{kind} with {n}"


@pytest.fixture
def shown(monkeypatch):
    calls = []

    def record(*objects, metadata=None, raw=False):
        calls.append((objects, metadata, raw))

    monkeypatch.setattr(IPython.display, "display", record)
    return calls


def test_in_batch_only_a_png_of_the_start_is_shown(shown, monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    draw = Recorder()
    show(CONTROLS, draw, describe)
    [((data,), metadata, raw)] = shown
    assert draw.calls == [(16, "plain")] and raw
    assert set(data) == {"image/png", "text/plain"} and metadata["image/png"]["alt"] == "plain with 16"


def test_in_batch_the_chosen_settings_are_completed_by_the_starts(shown, monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    draw = Recorder()
    show(CONTROLS, draw, describe, static=[{"n": 1024}, {"kind": "fast"}])
    assert draw.calls == [(1024, "plain"), (16, "fast")] and len(shown) == 2


def test_live_the_figure_follows_the_controls_and_so_does_its_alt_text(shown, monkeypatch):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    draw = Recorder()
    show(CONTROLS, draw, describe)
    [((box,), _, _)] = shown
    length, kind, picture = box.children
    assert 'alt="plain with 16"' in picture.value
    length.value = 1024
    kind.value = "fast"
    assert draw.calls == [(16, "plain"), (1024, "plain"), (1024, "fast")]
    assert 'alt="fast with 1024"' in picture.value


def test_sliders_show_units_and_wait_for_the_key_to_be_released():
    slider, names, _ = controls.live(CONTROLS, Recorder(), describe).children
    assert slider.description == "length" and slider.continuous_update is False
    assert [label for label, _ in slider.options] == ["16 tokens", "1,024 tokens"]
    assert [label for label, _ in names.options] == ["plain", "fast"]


def test_redrawing_leaves_no_open_figures():
    before = plt.get_fignums()
    length, *_ = controls.live(CONTROLS, Recorder(), describe).children
    length.value = 1024
    assert plt.get_fignums() == before


def test_a_start_outside_the_values_is_refused():
    with pytest.raises(ValueError, match="'length' cannot start at 5: choose from 16, 1024"):
        Slider("length", (16, 1024), 5)
