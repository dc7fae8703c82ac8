"""Whether every text of a figure can be read: none cut off, none under a legend or under another text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.offsetbox import DrawingArea
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

from lessons_lib.figures.style import DPI

SLACK = 2  # pixels, one as a reader sees it: boxes may touch by that much, since letters do not fill them


class Words(NamedTuple):
    """A text that is drawn. legend: the one that it belongs to; outline: its box, turned as the text is."""

    text: Text
    legend: Legend | None
    outline: Path


def problems(figure: Figure) -> list[str]:
    """One sentence for each text of a figure that is cut off or covered, as the figure would be drawn now."""
    before, figure.dpi = figure.dpi, DPI
    try:
        figure.draw_without_rendering()
        words = [Words(text, legend, outline(text)) for text, legend in texts(figure)]
        said = [f"{name(w)} is cut off" for w in words if cut_off(w, figure)]
        for legend in dict.fromkeys(w.legend for w in words if w.legend):
            said += [f"a legend covers {name(w)}" for w in words if w.legend is not legend and covers(legend, w)]
        pairs = [(a, b) for a, b in neighbours(words) if overlap(a.outline, b.outline) and not same(a, b)]
        return said + [f"{name(a)} and {name(b)} overlap" for a, b in pairs]
    finally:
        figure.dpi = before


def texts(artist: Artist, legend: Legend | None = None) -> Iterator[tuple[Text, Legend | None]]:
    """The texts below an artist that are drawn, each with the legend that it belongs to."""
    if not artist.get_visible():
        return
    if isinstance(artist, Text):
        if artist.get_text().strip() and drawn_box(artist):
            yield artist, legend
        return
    for child in children(artist):
        yield from texts(child, artist if isinstance(artist, Legend) else legend)


def children(artist: Artist) -> list[Artist]:
    """An artist's children, without what is not drawn: ticks outside the limits, axes that are switched off."""
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


def drawn_box(text: Text) -> Bbox | None:
    """The part of a text's box that its clipping leaves; None where nothing is drawn."""
    box = text.get_tightbbox()
    return box if box is not None and box.width > 0 and box.height > 0 else None


def outline(text: Text) -> Path:
    """A text's box in pixels, turned as the text is, and smaller by the slack on each side."""
    angle, around = text.get_rotation(), Text.get_window_extent(text)  # not an annotation's, which has the arrow in it
    text.set_rotation(0)
    flat = Text.get_window_extent(text)
    text.set_rotation(angle)
    (x, y), (w, h) = (around.p0 + around.p1) / 2, (max(flat.width - 2 * SLACK, 1), max(flat.height - 2 * SLACK, 1))
    turned = Affine2D().rotate_deg_around(x, y, angle)
    return rectangle(Bbox.from_bounds(x - w / 2, y - h / 2, w, h)).transformed(turned)


def rectangle(box: Bbox) -> Path:
    """A box as a path."""
    return Path([box.p0, (box.x1, box.y0), box.p1, (box.x0, box.y1), box.p0], closed=True)


def neighbours(words: list[Words]) -> list[tuple[Words, Words]]:
    """The pairs whose boxes meet. Few do, and outlines take long to compare: a coloured text has 1,000 characters."""
    boxes = np.array([w.outline.get_extents().extents for w in words]).reshape(-1, 4)  # x0, y0, x1, y1
    meet = (boxes[:, None, :2] < boxes[None, :, 2:]).all(-1)
    return [(words[i], words[j]) for i, j in np.argwhere(np.triu(meet & meet.T, 1))]


def overlap(a: Path, b: Path) -> bool:
    """Whether two outlines share an area."""
    return a.get_extents().overlaps(b.get_extents()) and a.intersects_path(b, filled=True)


def same(a: Words, b: Words) -> bool:
    """Whether a text is drawn upon itself, as by two axes with the same ticks in one place."""
    near = abs(a.outline.vertices - b.outline.vertices).max() <= SLACK
    return near and a.text.get_text() == b.text.get_text()


def covers(legend: Legend, words: Words) -> bool:
    """Whether a legend's frame, or without one the box of a line or patch in it, lies on a text that is not its own."""
    over = [legend.get_frame()] if legend.get_frame_on() else legend.findobj(DrawingArea)
    return any(overlap(rectangle(part.get_window_extent()), words.outline) for part in over)


def cut_off(words: Words, figure: Figure) -> bool:
    """Whether a part of a text lies outside the figure, or outside of what it is clipped to."""
    box, bounds = words.outline.get_extents(), [figure.bbox]
    if words.text.get_clip_on() and words.text.get_clip_box() is not None:
        bounds.append(words.text.get_clip_box())
    return any(box.x0 < b.x0 or box.y0 < b.y0 or box.x1 > b.x1 or box.y1 > b.y1 for b in bounds)


def name(words: Words) -> str:
    """A text in quotes, on one line, its end left out where it is long."""
    said = " ".join(words.text.get_text().split())
    return repr(said if len(said) <= 40 else said[:37] + "...")
