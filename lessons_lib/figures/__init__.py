"""Functions that draw from rows, and drawings made by code; `display` shows either with alt text.

A figure function takes rows, draws and returns the Axes; it never measures, saves or shows. Given here is what
lessons 00 to 03 and 07 draw with, much of it in later ones, too. A lesson that has more pictures of its own imports
their module:

compare        a prediction beside what was measured (all lessons), the width curve (00)
roofline       the roofline of this machine (00)
latency        where the time of a request and of a step goes (00, 01, 03, 06)
caches         what key-value caches take (02)
attention      tiles, who works on which, and what is moved (04)
serving        slots, load, memory, tails (05)
assisted       when drafting pays, and who wrote each token (06)
lookup         what was copied (07)
lookahead      Jacobi's rounds, lookahead's mask and pool (08)
medusa         the tree and its mask, heads in training (09)
quantization   levels, errors, quality against bits (10)
ladder         what each rung gains (11)
sparsity       shares that matter, and what skipping gains (12)
sweep          claims against a parameter, for `make sweep`
drawings       what README and the lessons show of how things work

style          colours, sizes and empty axes
rows           rows as dicts, grouped, and their spread
masks, spans   a mask as cells; a text coloured by who produced it
output         a figure into a notebook or a file, with its alt text
legible        whether every text of a figure can be read
"""

from lessons_lib.figures.attention import plot_context, plot_naive_and_tiled, plot_partition, plot_tiles, plot_traffic
from lessons_lib.figures.caches import plot_cache_memory
from lessons_lib.figures.compare import plot_prediction, plot_width_curve
from lessons_lib.figures.latency import plot_parts, plot_timeline
from lessons_lib.figures.lookahead import lookahead_mask, plot_masks, plot_payoff, plot_pool_growth, plot_trajectory
from lessons_lib.figures.lookup import plot_guesses, plot_spans
from lessons_lib.figures.masks import word
from lessons_lib.figures.output import display
from lessons_lib.figures.quantization import (
    plot_channels,
    plot_dots,
    plot_duel,
    plot_groups,
    plot_levels,
    plot_scaling,
    plot_steps,
)
from lessons_lib.figures.roofline import plot_roofline
from lessons_lib.figures.sparsity import plot_gains, plot_heads, plot_lines
from lessons_lib.figures.style import GREY, INK, axes, color, look

__all__ = [
    "GREY",
    "INK",
    "axes",
    "color",
    "display",
    "look",
    "lookahead_mask",
    "plot_cache_memory",
    "plot_channels",
    "plot_context",
    "plot_dots",
    "plot_duel",
    "plot_gains",
    "plot_groups",
    "plot_guesses",
    "plot_heads",
    "plot_levels",
    "plot_lines",
    "plot_masks",
    "plot_naive_and_tiled",
    "plot_partition",
    "plot_parts",
    "plot_payoff",
    "plot_pool_growth",
    "plot_prediction",
    "plot_roofline",
    "plot_scaling",
    "plot_spans",
    "plot_steps",
    "plot_tiles",
    "plot_timeline",
    "plot_traffic",
    "plot_trajectory",
    "plot_width_curve",
    "word",
]
