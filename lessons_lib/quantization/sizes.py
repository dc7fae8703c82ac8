"""Bits of a weight, bytes of a model, and the GPUs that hold it (lesson 10): all from shapes, before anything loads.

A format costs its bits and, for every group of weights, a scale and perhaps a minimum. Norms, biases and tables of
positions are left out (below 1% of the models here). GB = 1e9.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.machine import DATA_SHEETS

# bytes of memory as makers print them; some of it is always taken by driver and desktop
GPU_MEMORY = {"RTX 4060": 8e9, "T4": 16e9, "L4": 24e9, "RTX 4090": 24e9} | {
    g.name: g.memory for g in DATA_SHEETS.values()
}


@dataclass(frozen=True)
class WeightFormat:
    """Bits of a code, and further bits of every group: None is a row of the matrix."""

    bits: int
    extra: float = 0.0
    group: int | None = None

    def bits_per_weight(self, columns: int) -> float:
        """bits + extra/group for rows of so many columns, which the group must divide (ValueError)."""
        if columns % (self.group or columns):
            raise ValueError(f"groups of {self.group} do not divide rows of {columns} weights; choose smaller groups")
        return self.bits + self.extra / (self.group or columns)


def integer_format(bits: int, group: int | None = None, extra: float = 32) -> WeightFormat:
    """Integers in groups. extra: 16 bits for the scale of absmax, 32 with a minimum, 24 with a zero point of a byte."""
    return WeightFormat(bits, extra, group)


WEIGHT_FORMATS = {
    "fp32": WeightFormat(32),
    "bf16": WeightFormat(16),
    "fp8": WeightFormat(8, 32),  # a float32 scale per row
    "int8": integer_format(8, extra=16),
    "int8 g32 minimum": integer_format(8, 32),
    "int4 g32": integer_format(4, 32),
    "int4 g64": integer_format(4, 64),
    "int4 g128": integer_format(4, 128),
    "int3 g64": integer_format(3, 64),
    "int2 g32": integer_format(2, 32),
    "nf4": WeightFormat(4, 32, 64),  # float32 scales of blocks of 64
    "nf4 double": WeightFormat(4, 8 + 32 / 256, 64),  # and those in 8 bits, with a scale for every 256
}


def step_bytes(shape: ModelConfig, layers: str, head: str | None = None) -> float:
    """Bytes of weights that one decode step reads: matrices of the layers in one format, LM head in another.

    head: as libraries have it, a head of 16 bits, or 32 beside layers of 32. Raises ValueError for names that are
    not in WEIGHT_FORMATS and for groups that do not divide this model's rows.
    """
    return bytes_in(shape, _format(layers).bits_per_weight, _format(head or _plain(layers)).bits_per_weight)


def bytes_in(shape: ModelConfig, layers: Callable[[int], float], head: Callable[[int], float]) -> float:
    """Bytes of weights that one decode step reads. layers, head: columns of a matrix -> bits a weight."""
    bits = sum(rows * columns * layers(columns) for rows, columns in shape.layer_matrices)
    return (shape.num_layers * bits + shape.head_weights * head(shape.hidden_size)) / 8


def model_bytes(shape: ModelConfig, layers: str, head: str | None = None) -> float:
    """Bytes of weights in memory: as `step_bytes`, and the embedding, never rounded, unless it is the head itself.

    A tied head that is rounded is a second table: the embedding stays for looking up. That saves traffic only.
    ValueError likewise.
    """
    plain = _plain(layers)
    shared = shape.tie_word_embeddings and head in (None, plain) and not shape.head_rows
    table = shape.vocab_size * shape.hidden_size * WEIGHT_FORMATS[plain].bits / 8
    return step_bytes(shape, layers, head) + (0 if shared else table)


def gpus_that_hold(needed: float) -> list[str]:
    """Names of the GPUs with so many bytes or more, the smallest first. needed: weights, and cache, and slack."""
    return [name for name, room in sorted(GPU_MEMORY.items(), key=lambda item: item[1]) if room >= needed]


def _plain(layers: str) -> str:
    return "fp32" if layers == "fp32" else "bf16"


def _format(name: str) -> WeightFormat:
    if name not in WEIGHT_FORMATS:
        raise ValueError(f"there is no format {name!r}; choose one of {', '.join(WEIGHT_FORMATS)}")
    return WEIGHT_FORMATS[name]
