"""Measuring and predicting (every lesson): this machine, clocks, one cost model, quality and results."""

from lessons_lib.measure.config import CONFIGS, DATA_SHEETS, ELEMENT_BYTES, DataSheet, ModelConfig
from lessons_lib.measure.cost import (
    LinearCost,
    Load,
    RooflineCost,
    StepCost,
    acceptance_rate,
    best_gamma,
    break_even,
    break_even_tokens,
    crossing,
    exit_cost,
    expected_tokens,
    fit,
    walltime_factor,
    width_cost,
    width_curve,
)
from lessons_lib.measure.profiler import bytes_left, count_graphs, kernel_times, peak_bytes
from lessons_lib.measure.quality import chi_square
from lessons_lib.measure.results import Result, show

__all__ = [
    "CONFIGS",
    "DATA_SHEETS",
    "DataSheet",
    "ELEMENT_BYTES",
    "LinearCost",
    "Load",
    "ModelConfig",
    "Result",
    "RooflineCost",
    "StepCost",
    "acceptance_rate",
    "best_gamma",
    "break_even",
    "break_even_tokens",
    "bytes_left",
    "chi_square",
    "count_graphs",
    "crossing",
    "exit_cost",
    "expected_tokens",
    "fit",
    "kernel_times",
    "peak_bytes",
    "show",
    "walltime_factor",
    "width_cost",
    "width_curve",
]
