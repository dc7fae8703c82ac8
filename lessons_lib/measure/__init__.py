"""Measuring and predicting (every lesson): this machine, clocks, one cost model, quality and results."""

from lessons_lib.measure.config import CONFIGS, DATA_SHEETS, ELEMENT_BYTES, ModelConfig
from lessons_lib.measure.cost import (
    LinearCost,
    Load,
    StepCost,
    acceptance_rate,
    best_gamma,
    break_even,
    break_even_tokens,
    early_exit_cost,
    expected_tokens,
    fit,
    walltime_factor,
    width_cost,
    width_curve,
)
from lessons_lib.measure.profiler import count_graphs, peak_bytes
from lessons_lib.measure.quality import chi_square
from lessons_lib.measure.results import Result, show

__all__ = [
    "CONFIGS",
    "DATA_SHEETS",
    "ELEMENT_BYTES",
    "LinearCost",
    "Load",
    "ModelConfig",
    "Result",
    "StepCost",
    "acceptance_rate",
    "best_gamma",
    "break_even",
    "break_even_tokens",
    "chi_square",
    "count_graphs",
    "early_exit_cost",
    "expected_tokens",
    "fit",
    "peak_bytes",
    "show",
    "walltime_factor",
    "width_cost",
    "width_curve",
]
