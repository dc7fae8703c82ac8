"""Bytes of a model in a format, and the GPUs it fits on (lesson 10): from shapes alone, without loading anything.

Norms, biases and rotary tables are left out (below 1% of the models here). GB = 1e9.
"""

from lessons_lib.measure.config import DATA_SHEETS, ModelConfig
from lessons_lib.quantization.formats import bits_of

# bytes of memory by data sheet; driver and desktop always take some of it
GPU_MEMORY = {"RTX 4060": 8e9, "T4": 16e9, "L4": 24e9, "RTX 4090": 24e9} | {
    g.name: g.memory for g in DATA_SHEETS.values()
}


def step_bytes(shape: ModelConfig, layers: str, head: str | None = None) -> float:
    """Bytes of weights that one decode step reads, with the layers in one format and the LM head in another.

    layers, head: names as in `bits_of`. head None: 16 bits, or 32 beside layers of 32, as libraries do. A
    group must divide this model's rows.
    """
    bits = sum(rows * columns * bits_of(layers, columns) for rows, columns in shape.layer_matrices)
    head_bits = shape.head_weights * bits_of(head or _unrounded(layers), shape.hidden_size)
    return (shape.num_layers * bits + head_bits) / 8


def model_bytes(shape: ModelConfig, layers: str) -> float:
    """Bytes of weights in memory: as `step_bytes`, plus the embedding if it is not also the head.

    Neither is rounded. If a tied head were, the embedding would stay as a second table for lookups, so rounding the
    head saves traffic, not memory.
    """
    shared = shape.tie_word_embeddings and not shape.head_rows
    table = shape.vocab_size * shape.hidden_size * bits_of(_unrounded(layers), shape.hidden_size) / 8
    return step_bytes(shape, layers) + (0 if shared else table)


def gpus_that_hold(needed: float) -> list[str]:
    """Names of the GPUs with at least `needed` bytes of memory, smallest first. needed: weights, KV cache and slack."""
    return [name for name, room in sorted(GPU_MEMORY.items(), key=lambda item: item[1]) if room >= needed]


def _unrounded(layers: str) -> str:
    """The dtype of the head and the embedding beside layers in this format."""
    return "fp32" if layers == "fp32" else "bf16"
