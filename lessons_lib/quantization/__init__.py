"""Weights and KV caches in few bits (lessons 10, 11).

integers        2 to 8 bits: codes and the values that they represent
floats          NF4 and FP8
formats         all of them by name, with their errors; sizes: their bytes before anything loads
linear          nn.Modules that take the place of an nn.Linear: W8A16, W4A16, W8A8, W4A8, LLM.int8()
calibration     the inputs of each matrix on sample texts
gptq, awq, smoothquant   three methods that use it, a file each
model           quantize_model swaps these layers into a decoder
kv              a KV cache in few bits
cpu, cuda       kernels of one kind of device, used where such a layer is made
"""

from lessons_lib.quantization.awq import awq_scales
from lessons_lib.quantization.calibration import MATRICES, inputs_of, watch
from lessons_lib.quantization.floats import codebook
from lessons_lib.quantization.formats import bits_of, decibels, draws, relative_error, round_trip, rounding
from lessons_lib.quantization.gptq import gptq, hessian, inverse_factor, layer_loss, sweep
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.kv import QuantizedCache, quantize_keys, quantize_values, restore_keys, restore_values
from lessons_lib.quantization.linear import (
    LLMInt8Linear,
    ScaledLinear,
    W4A16Linear,
    W8A8Linear,
    outlier_columns,
    round_rows,
)
from lessons_lib.quantization.model import PLAIN, W8A8Options, bytes_kept, bytes_read, quantize_model
from lessons_lib.quantization.sizes import GPU_MEMORY, gpus_that_hold, model_bytes, step_bytes
from lessons_lib.quantization.smoothquant import smooth_scales

__all__ = [
    "GPU_MEMORY",
    "LLMInt8Linear",
    "MATRICES",
    "PLAIN",
    "QuantizedCache",
    "ScaledLinear",
    "W4A16Linear",
    "W8A8Linear",
    "W8A8Options",
    "awq_scales",
    "bits_of",
    "bytes_kept",
    "bytes_read",
    "codebook",
    "decibels",
    "draws",
    "gptq",
    "gpus_that_hold",
    "hessian",
    "inputs_of",
    "inverse_factor",
    "layer_loss",
    "model_bytes",
    "outlier_columns",
    "quantize",
    "quantize_keys",
    "quantize_model",
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
    "watch",
]
