"""Measuring and predicting (every lesson): this machine, clocks, costs, quality and results."""

from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES
from lessons_lib.measure.cost import CostModel
from lessons_lib.measure.crossing import break_even_tokens
from lessons_lib.measure.data_sheets import PUBLISHED, DataSheet
from lessons_lib.measure.fit import chi_square
from lessons_lib.measure.graphs import count_graphs
from lessons_lib.measure.memory import bytes_left, peak_bytes
from lessons_lib.measure.parts import kernel_times
from lessons_lib.measure.scorecard import Score, show
from lessons_lib.measure.speculation import (
    acceptance_rate,
    best_gamma,
    break_even,
    expected_tokens,
    walltime_factor,
    width_cost,
)

__all__ = [
    "CostModel",
    "DataSheet",
    "ELEMENT_BYTES",
    "PUBLISHED",
    "CONFIGS",
    "Score",
    "acceptance_rate",
    "best_gamma",
    "break_even",
    "break_even_tokens",
    "bytes_left",
    "chi_square",
    "count_graphs",
    "expected_tokens",
    "kernel_times",
    "peak_bytes",
    "show",
    "walltime_factor",
    "width_cost",
]
