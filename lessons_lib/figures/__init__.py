"""Functions that draw from rows, and drawings made by code; `display` shows either with alt text.

A figure function takes rows, draws and returns the Axes; it never measures, saves or shows. The drawings that
README and the lessons use are in `drawings`.

Given here is what lessons 00 to 03 and 07 draw with, much of it in later ones, too. A lesson that has more pictures of
its own imports their module: attention (04), serving (05), assisted (06), lookahead (08), medusa (09),
quantization (10), sparsity (12).
Those of widgets alone are not listed.
"""

from lessons_lib.figures.caches import plot_cache_memory
from lessons_lib.figures.compare import plot_prediction, plot_width_curve
from lessons_lib.figures.latency import plot_parts, plot_timeline
from lessons_lib.figures.lookup import plot_guesses, plot_spans
from lessons_lib.figures.output import display
from lessons_lib.figures.roofline import plot_roofline
from lessons_lib.figures.style import axes

__all__ = [
    "axes", "display", "plot_cache_memory", "plot_guesses", "plot_parts", "plot_prediction", "plot_roofline",
    "plot_spans", "plot_timeline", "plot_width_curve",
]  # fmt: skip
