"""Show a figure in a notebook with its alt text, and check that all of its text is legible.

JupyterLab and nbconvert's lab template ignore the `alt` of a PNG output; both honour an <img> tag. But stored outputs
should be PNG, because viewers that clean HTML outputs (GitHub) may drop pictures inside them. So a live session gets
the tag. A notebook executed by a program gets the PNG, with `alt` in the output's metadata for rendering.
"""

import base64
import html
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import IPython.display
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.offsetbox import DrawingArea
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox
from PIL import Image

from lessons_lib.course import figures  # noqa: F401  applies the style sheet, for a lesson's own plots, too
from lessons_lib.progress import batch, storing

DPI = 220  # figures are shown at 110 dpi and stored at twice that
SLACK = 2  # overlap allowed between boxes of text, in stored pixels: letters do not fill their boxes


def display(drawn: Figure | Axes, alt: str) -> None:
    """Show a figure with alt text for readers who cannot see it, and close it.

    Raises ValueError without alt text and, while a lesson is executed for storing, for text that is not legible.
    """
    figure = figure_of(drawn)
    if not alt:
        raise ValueError("say in `alt` what the figure shows, for readers who cannot see it")
    if storing() and (unreadable := problems(figure)):
        raise ValueError(f"Move the texts of this figure that cannot be read: {'; '.join(unreadable)}.")
    if batch():
        data = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": alt}
        metadata = {"image/png": {"alt": alt, "width": width(figure)}}
    else:
        data, metadata = {"text/html": image_tag(figure, alt), "text/plain": alt}, {}
    plt.close(figure)
    IPython.display.display(data, metadata=metadata, raw=True)


def figure_of(drawn: Figure | Axes) -> Figure:
    """The figure that a plot function returned or drew on."""
    return drawn if isinstance(drawn, Figure) else drawn.figure


def png(figure: Figure) -> bytes:
    """Encode the figure as PNG with a palette of 256 colours: a third of the size, with no visible difference."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, dpi=DPI)
    Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG; returns the path."""
    path.write_bytes(png(figure))
    return path


def width(figure: Figure) -> int:
    """Display width of the figure in CSS pixels."""
    return round(figure.get_figwidth() * DPI / 2)


def image_tag(figure: Figure, alt: str) -> str:
    """An <img> with embedded picture, alt text and display width."""
    data = base64.b64encode(png(figure)).decode()
    style = "max-width: 100%; height: auto; background: white"
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" width="{width(figure)}" style="{style}">'


# Legibility: no text is cut off, under a legend, or under another text


class Words(NamedTuple):
    """A drawn text, the legend it belongs to, and its rotated box."""

    text: Text
    legend: Legend | None
    outline: Outline

    def __repr__(self) -> str:
        said = " ".join(self.text.get_text().split())
        return repr(said if len(said) <= 40 else said[:37] + "...")


def problems(figure: Figure) -> list[str]:
    """One sentence for each text of a figure that is cut off or covered in its current state."""
    before, figure.dpi = figure.dpi, DPI
    try:
        figure.draw_without_rendering()
        words = [Words(text, legend, outline(text)) for text, legend in texts(figure)]
        found = [f"{w!r} is cut off" for w in words if cut_off(w, figure)]
        for legend in dict.fromkeys(w.legend for w in words if w.legend):
            found += [f"a legend covers {w!r}" for w in words if w.legend is not legend and covers(legend, w)]
        return found + [f"{a!r} and {b!r} overlap" for a, b in overlapping(words)]
    finally:
        figure.dpi = before


def texts(artist: Artist, legend: Legend | None = None) -> Iterator[tuple[Text, Legend | None]]:
    """All drawn texts below an artist, each with the legend it belongs to."""
    if not artist.get_visible():
        return
    if isinstance(artist, Text):
        box = artist.get_tightbbox() if artist.get_text().strip() else None
        if box is not None and box.width > 0 and box.height > 0:
            yield artist, legend
        return
    for child in children(artist):
        yield from texts(child, artist if isinstance(artist, Legend) else legend)


def children(artist: Artist) -> list[Artist]:
    """An artist's children, except those that are not drawn: ticks outside the limits, hidden axes."""
    if isinstance(artist, Axis):
        low, high = sorted(artist.get_transform().transform(artist.get_view_interval()))
        slack = 1e-6 * (high - low)
        ticks = [*artist.get_major_ticks(), *artist.get_minor_ticks()]
        places = artist.get_transform().transform([tick.get_loc() for tick in ticks])
        inside = [tick for tick, at in zip(ticks, places, strict=True) if low - slack <= at <= high + slack]
        return [artist.label, artist.offsetText, *inside]
    if isinstance(artist, Axes) and not artist.axison:
        return [child for child in artist.get_children() if not isinstance(child, Axis)]
    return artist.get_children()


def outline(text: Text) -> Outline:
    """A text's rotated box in pixels, shrunk by SLACK on each side."""
    angle, around = text.get_rotation(), Text.get_window_extent(text)  # an annotation's box has the arrow
    text.set_rotation(0)
    flat = Text.get_window_extent(text)
    text.set_rotation(angle)
    (x, y), (w, h) = (around.p0 + around.p1) / 2, (max(flat.width - 2 * SLACK, 1), max(flat.height - 2 * SLACK, 1))
    turned = Affine2D().rotate_deg_around(x, y, angle)
    return rectangle(Bbox.from_bounds(x - w / 2, y - h / 2, w, h)).transformed(turned)


def rectangle(box: Bbox) -> Outline:
    """A box as a path."""
    return Outline([box.p0, (box.x1, box.y0), box.p1, (box.x0, box.y1), box.p0], closed=True)


def overlap(a: Outline, b: Outline) -> bool:
    """Whether two outlines share an area."""
    return a.get_extents().overlaps(b.get_extents()) and a.intersects_path(b, filled=True)


def overlapping(words: list[Words]) -> Iterator[tuple[Words, Words]]:
    """Pairs of texts that overlap, except equal ones at the same place (two axes with the same ticks).

    Boxes are compared first, all at once, because a coloured text consists of 1,000 texts of one character.
    """
    boxes = np.array([w.outline.get_extents().extents for w in words]).reshape(-1, 4)  # x0, y0, x1, y1
    meet = (boxes[:, None, :2] < boxes[None, :, 2:]).all(-1)
    for i, j in np.argwhere(np.triu(meet & meet.T, 1)):
        a, b = words[i], words[j]
        near = abs(a.outline.vertices - b.outline.vertices).max() <= SLACK
        if overlap(a.outline, b.outline) and not (near and a.text.get_text() == b.text.get_text()):
            yield a, b


def covers(legend: Legend, words: Words) -> bool:
    """Whether a legend covers a text outside it, by its frame or, without a frame, by a line or patch in it."""
    over = [legend.get_frame()] if legend.get_frame_on() else legend.findobj(DrawingArea)
    return any(overlap(rectangle(part.get_window_extent()), words.outline) for part in over)


def cut_off(words: Words, figure: Figure) -> bool:
    """Whether a part of a text lies outside the figure or its clipping area."""
    box, bounds = words.outline.get_extents(), [figure.bbox]
    if words.text.get_clip_on() and words.text.get_clip_box() is not None:
        bounds.append(words.text.get_clip_box())
    return any(box.x0 < b.x0 or box.y0 < b.y0 or box.x1 > b.x1 or box.y1 > b.y1 for b in bounds)
