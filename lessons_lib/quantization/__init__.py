"""Weights and KV caches in few bits (lessons 10, 11): formats, calibrated methods, matrix products."""

from lessons_lib.quantization.cpu import Int8Both, MixedProduct, outlier_columns, round_rows
from lessons_lib.quantization.formats import (
    bits_of,
    codebook,
    decibels,
    draws,
    quantize,
    relative_error,
    round_trip,
    rounding,
)
from lessons_lib.quantization.gptq import hessian, inverse_factor, layer_loss, sweep
from lessons_lib.quantization.kv import QuantizedCache, quantize_keys, quantize_values, restore_keys, restore_values
from lessons_lib.quantization.linear import Scaled
from lessons_lib.quantization.scaling import awq_scales, smooth_scales
from lessons_lib.quantization.sizes import GPU_MEMORY, gpus_that_hold, model_bytes, step_bytes

__all__ = [
    "GPU_MEMORY",
    "Int8Both",
    "MixedProduct",
    "QuantizedCache",
    "Scaled",
    "awq_scales",
    "bits_of",
    "codebook",
    "decibels",
    "draws",
    "gpus_that_hold",
    "hessian",
    "inverse_factor",
    "layer_loss",
    "model_bytes",
    "outlier_columns",
    "quantize",
    "quantize_keys",
    "quantize_values",
    "relative_error",
    "restore_keys",
    "restore_values",
    "round_rows",
    "round_trip",
    "rounding",
    "smooth_scales",
    "step_bytes",
    "sweep",
]
