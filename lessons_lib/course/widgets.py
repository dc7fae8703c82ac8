"""A figure with sliders in a live session, and the same figure as a stored picture elsewhere.

Live (JupyterLab, Colab), a slider per setting stands above the figure, which is redrawn at every change. Sliders work
by keyboard: Tab moves to a slider, the left and right arrows move it. Where a program executes the notebook, only the
figure at the chosen settings is shown, as PNG, because a stored notebook holds no widget state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import IPython.display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.course.display import display, figure_of, image_tag
from lessons_lib.progress import batch

Draw = Callable[..., tuple[Axes | Figure, str]]  # settings -> figure and alt text

# A fixed width of the value beside a slider makes all sliders equally long. Read-only, because editing the value has no
# effect and only adds a stop for the Tab key; Firefox has no property for this.
ALIGNED = """<style>.lessons-lib-slider .widget-readout {
min-width: 11em; padding-left: .6em; text-align: left; -webkit-user-modify: read-only }</style>"""


@dataclass(frozen=True)
class Slider:
    """A slider over a list of values, numbers or names."""

    label: str
    values: Sequence[Any]
    start: Any
    unit: str = ""

    def __post_init__(self) -> None:
        if self.start not in self.values:
            known = ", ".join(map(str, self.values))
            raise ValueError(f"{self.label!r} cannot start at {self.start!r}: choose from {known}")

    def options(self) -> list[tuple[str, Any]]:
        """(label beside the slider, value) of each value."""
        names = [value if isinstance(value, str) else f"{value:,}" for value in self.values]
        return [(f"{name} {self.unit}".strip(), value) for name, value in zip(names, self.values, strict=True)]


def show(controls: Mapping[str, Slider], draw: Draw, stored: Sequence[dict[str, Any]] = ({},)) -> None:
    """Show draw(**settings) with a slider per setting; in a batch run, only the figure.

    stored: settings of the figures that a batch run shows; missing ones are the sliders' initial values.
    """
    if batch():
        for settings in stored:
            display(*draw(**{name: control.start for name, control in controls.items()} | settings))
    else:
        IPython.display.display(live(controls, draw))


def live(controls: Mapping[str, Slider], draw: Draw) -> Any:
    """The ipywidgets box: the sliders, and below them the figure."""
    import ipywidgets

    # names get a slider, too: JupyterLab disables the arrow keys in menus, but not in sliders
    label = max(9, 0.6 * max(len(control.label) for control in controls.values()))  # in em; a longer label would be cut
    sliders = {
        name: ipywidgets.SelectionSlider(
            options=control.options(),
            value=control.start,
            description=control.label,
            continuous_update=False,  # draw when the slider is released, not while it moves
            layout=ipywidgets.Layout(width="95%", max_width=f"{label + 29:.1f}em"),
            style={"description_width": f"{label:.1f}em"},
        ).add_class("lessons-lib-slider")
        for name, control in controls.items()
    }
    picture = ipywidgets.HTML()

    def redraw(_change: Any = None) -> None:
        drawn, alt = draw(**{name: slider.value for name, slider in sliders.items()})
        try:
            picture.value = ALIGNED + image_tag(figure_of(drawn), alt)
        finally:
            plt.close(figure_of(drawn))  # otherwise figures would accumulate

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), picture])
