"""Bits per weight, bytes of a model, and the GPUs it fits on (lesson 10): from shapes alone, without loading anything.

A format stores its codes and, for every group of weights, a scale and perhaps a minimum. Norms, biases and rotary
tables are left out (below 1% of the models here). GB = 1e9.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lessons_lib.measure.config import DATA_SHEETS, ModelConfig

# bytes of memory by data sheet; driver and desktop always take some of it
GPU_MEMORY = {"RTX 4060": 8e9, "T4": 16e9, "L4": 24e9, "RTX 4090": 24e9} | {
    g.name: g.memory for g in DATA_SHEETS.values()
}


@dataclass(frozen=True)
class WeightFormat:
    """bits of a code, and `extra` bits for every group of weights (None: one group per row)."""

    bits: int
    extra: float = 0.0
    group: int | None = None

    def bits_per_weight(self, columns: int) -> float:
        """bits + extra/group, for rows of `columns` weights. Raises ValueError unless the group divides the row."""
        if columns % (self.group or columns):
            raise ValueError(f"groups of {self.group} do not divide rows of {columns} weights; choose smaller groups")
        return self.bits + self.extra / (self.group or columns)


def integer_format(bits: int, group: int | None = None, extra: float = 32) -> WeightFormat:
    """Integers in groups. extra: bits per group, 16 for absmax, 32 with a minimum, 24 with a 1-byte zero point."""
    return WeightFormat(bits, extra, group)


WEIGHT_FORMATS = {
    "fp32": WeightFormat(32),
    "bf16": WeightFormat(16),
    "fp8": WeightFormat(8, 32),  # a float32 scale per row
    "int8": integer_format(8, extra=16),
    "int8 g32 affine": integer_format(8, 32),
    "int4 g32": integer_format(4, 32),
    "int4 g64": integer_format(4, 64),
    "int4 g128": integer_format(4, 128),
    "int3 g64": integer_format(3, 64),
    "int2 g32": integer_format(2, 32),
    "nf4": WeightFormat(4, 32, 64),  # a float32 scale per block of 64
    "nf4 double": WeightFormat(4, 8 + 32 / 256, 64),  # 8-bit scales, with a float32 scale for every 256 of them
}


def step_bytes(shape: ModelConfig, layers: str, head: str | None = None) -> float:
    """Bytes of weights that one decode step reads, with the layers in one format and the LM head in another.

    layers, head: names in WEIGHT_FORMATS. head None: 16 bits, or 32 beside layers of 32, as libraries do. Raises
    ValueError for unknown names and for groups that do not divide this model's rows.
    """
    return bytes_in(shape, _format(layers).bits_per_weight, _format(head or _plain(layers)).bits_per_weight)


def bytes_in(shape: ModelConfig, layers: Callable[[int], float], head: Callable[[int], float]) -> float:
    """Bytes of weights that one decode step reads. layers, head: columns of a matrix -> bits per weight."""
    bits = sum(rows * columns * layers(columns) for rows, columns in shape.layer_matrices)
    return (shape.num_layers * bits + shape.head_weights * head(shape.hidden_size)) / 8


def model_bytes(shape: ModelConfig, layers: str) -> float:
    """Bytes of weights in memory: as `step_bytes`, plus the embedding if it is not also the head.

    Neither is rounded. If a tied head were, the embedding would stay as a second table for lookups, so rounding the
    head saves traffic, not memory.
    """
    shared = shape.tie_word_embeddings and not shape.head_rows
    table = shape.vocab_size * shape.hidden_size * WEIGHT_FORMATS[_plain(layers)].bits / 8
    return step_bytes(shape, layers) + (0 if shared else table)


def gpus_that_hold(needed: float) -> list[str]:
    """Names of the GPUs with at least `needed` bytes of memory, smallest first. needed: weights, KV cache and slack."""
    return [name for name, room in sorted(GPU_MEMORY.items(), key=lambda item: item[1]) if room >= needed]


def _plain(layers: str) -> str:
    return "fp32" if layers == "fp32" else "bf16"


def _format(name: str) -> WeightFormat:
    if name not in WEIGHT_FORMATS:
        raise ValueError(f"there is no format {name!r}; choose one of {', '.join(WEIGHT_FORMATS)}")
    return WEIGHT_FORMATS[name]
