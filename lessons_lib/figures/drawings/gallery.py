"""How a drawing is registered with its alt text, and how all are written into a folder."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.course.display import save

GALLERY: dict[str, Callable[[], Figure]] = {}
ALT: dict[str, str] = {}


def drawing(alt: str) -> Callable[[Callable[[], Axes]], Callable[[], Figure]]:
    """Register a function that draws on a canvas; calling it then returns the Figure, labelled with `alt`."""

    def register(draw: Callable[[], Axes]) -> Callable[[], Figure]:
        @wraps(draw)
        def labelled() -> Figure:
            figure = draw().figure
            figure.set_label(alt)  # figures.display reads it, and README's alt texts come from ALT
            return figure

        GALLERY[draw.__name__], ALT[draw.__name__] = labelled, alt
        return labelled

    return register


def draw_all(folder: Path | str) -> list[Path]:
    """Write every drawing as folder/NAME.png (the same bytes each time) and return the paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [save(draw(), folder / f"{name}.png") for name, draw in GALLERY.items()]
