"""A figure with sliders where someone can move them, and the same figure without where nobody can.

Live (JupyterLab, Colab): one slider per control above the figure, which is drawn again at every change. They
work by keyboard: Tab to reach a slider, left and right arrow to move it. Where a program executes the notebook
(progress.batch) only the figure at the chosen settings is shown, as PNG: no widget state in a notebook.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import IPython.display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.figures.output import display, figure_of, image_tag
from lessons_lib.progress import batch

Draw = Callable[..., Axes | Figure]
Describe = Callable[..., str]
Settings = dict[str, Any]

# What stands beside a slider takes of its width what its text needs: no two would be equally long. And it can be
# edited, to no effect, which makes it one more stop of the Tab key; Firefox has no property against that.
ALIGNED = """<style>.lessons-lib-slider .widget-readout {
min-width: 11em; padding-left: .6em; text-align: left; -webkit-user-modify: read-only }</style>"""


@dataclass(frozen=True)
class Slider:
    """One value out of a row of them, numbers or names. Raises ValueError when `start` is none of them."""

    label: str
    values: Sequence[Any]
    start: Any
    unit: str = ""

    def __post_init__(self) -> None:
        if self.start not in self.values:
            known = ", ".join(map(str, self.values))
            raise ValueError(f"{self.label!r} cannot start at {self.start!r}: choose from {known}")

    def options(self) -> list[tuple[str, Any]]:
        """(what is shown beside the slider, value)."""
        names = [value if isinstance(value, str) else f"{value:,}" for value in self.values]
        return [(f"{name} {self.unit}".strip(), value) for name, value in zip(names, self.values, strict=True)]


def show(controls: Mapping[str, Slider], draw: Draw, describe: Describe, static: Sequence[Settings] = ({},)) -> None:
    """Show draw(**settings) with a control per setting; without anybody to move them, only the figure.

    controls: setting -> Slider. describe: settings -> alt text, which says with numbers what the figure shows.
    static: what to draw in a batch run, each completed by the controls' starts. What draw and describe raise is raised.
    """
    start = {name: control.start for name, control in controls.items()}
    if batch():
        for settings in static:
            chosen = start | settings
            display(draw(**chosen), describe(**chosen))
    else:
        IPython.display.display(live(controls, draw, describe))


def picture(draw: Draw, describe: Describe, settings: Settings) -> str:
    """The figure at these settings as an <img>, closed afterwards so that redrawing does not pile figures up."""
    figure = figure_of(draw(**settings))
    try:
        return image_tag(figure, describe(**settings))
    finally:
        plt.close(figure)


def live(controls: Mapping[str, Slider], draw: Draw, describe: Describe) -> Any:
    """The ipywidgets box: the controls, and below them the figure that follows them."""
    import ipywidgets

    longest = max(len(control.label) for control in controls.values())
    inputs = {name: _input(control, max(9, 0.6 * longest)) for name, control in controls.items()}
    shown = ipywidgets.HTML()

    def redraw(_change: Any = None) -> None:
        shown.value = ALIGNED + picture(draw, describe, {name: widget.value for name, widget in inputs.items()})

    for widget in inputs.values():
        widget.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*inputs.values(), shown])


def _input(control: Slider, label: float) -> Any:
    """A slider, for names too: JupyterLab takes the arrow keys away from menus, but not from sliders.

    label: the width of what stands before it, in letters' heights; a longer text would be cut.
    """
    import ipywidgets

    slider = ipywidgets.SelectionSlider(
        options=control.options(),
        value=control.start,
        description=control.label,
        continuous_update=False,  # draw when the slider rests, not at every step on the way
        layout=ipywidgets.Layout(width="95%", max_width=f"{label + 29:.1f}em"),
        style={"description_width": f"{label:.1f}em"},
    )
    return slider.add_class("lessons-lib-slider")
