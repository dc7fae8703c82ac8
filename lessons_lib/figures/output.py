"""Put a figure into a notebook: a PNG that carries its alt text, so that a screen reader can say it.

JupyterLab ignores the `alt` of a PNG output, and nbconvert's lab template does too; both honour an <img>
tag. Kept outputs are rather PNG: viewers that clean HTML outputs (GitHub) may drop pictures inside them. So a
live session gets the tag; a notebook that a program executes (progress.batch) gets the PNG with `alt`
in the output's metadata, from where the rendering to HTML takes it.
"""

import base64
import html
import io
from pathlib import Path

import IPython.display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lessons_lib.figures import legible
from lessons_lib.figures.style import DPI
from lessons_lib.progress import batch, storing


def figure_of(drawn: Figure | Axes) -> Figure:
    """The figure that belongs to what a figure function returned."""
    return drawn if isinstance(drawn, Figure) else drawn.figure


def png(figure: Figure) -> bytes:
    """The figure as PNG at twice the size it is shown at. The same drawing gives the same bytes.

    Stored with a palette of 256 colours, a third of the size of full colour and not to be told from it here.
    """
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, dpi=DPI)
    Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG and return where."""
    path.write_bytes(png(figure))
    return path


def width(figure: Figure) -> int:
    """How wide the figure is shown, in CSS pixels: half of the pixels it stores."""
    return round(figure.get_figwidth() * DPI / 2)


def image_tag(figure: Figure, alt: str) -> str:
    """An <img> with the picture inside, its alt text, and the width it is shown at (CSS pixels)."""
    data = base64.b64encode(png(figure)).decode()
    style = "max-width: 100%; height: auto; background: white"
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" width="{width(figure)}" style="{style}">'


def bundle(figure: Figure, alt: str) -> tuple[dict[str, str], dict[str, dict]]:
    """(data, metadata) of a notebook output that shows the figure, in one of the module's two forms."""
    if not batch():
        return {"text/html": image_tag(figure, alt), "text/plain": alt}, {}
    data = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt, "width": width(figure)}}


def display(drawn: Figure | Axes, alt: str = "") -> None:
    """Show a figure in the notebook, with alt text: what a reader who cannot see it needs to know.

    The drawings bring their own alt text. The figure is closed, so that the notebook does not show it again.
    ValueError without alt text, and, while a lesson is executed for storing, for text that cannot be read.
    """
    figure = figure_of(drawn)
    alt = alt or figure.get_label()
    if not alt:
        raise ValueError("say in `alt` what the figure shows, for readers who cannot see it")
    if storing() and (unreadable := legible.problems(figure)):
        raise ValueError(f"Move the texts of this figure that cannot be read: {'; '.join(unreadable)}.")
    data, metadata = bundle(figure, alt)
    plt.close(figure)
    IPython.display.display(data, metadata=metadata, raw=True)
