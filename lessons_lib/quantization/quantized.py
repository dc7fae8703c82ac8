"""What every quantized tensor answers (lesson 10): its values again, and how many bytes it really takes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quantized(ABC):
    """A tensor of this shape and dtype, kept as codes and what turns them back into values."""

    shape: torch.Size
    dtype: torch.dtype

    @abstractmethod
    def dequantize(self) -> Tensor:
        """The values that the codes stand for, in the shape and dtype of the original."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept: codes, scales, zero points."""
        return stored_bytes(self)

    @property
    def bits_per_weight(self) -> float:
        """8·nbytes over the number of values."""
        return 8 * self.nbytes / self.shape.numel()


def stored_bytes(part: Any) -> int:
    """Bytes of a tensor, or of all tensors in the fields of a dataclass; 0 for anything else."""
    if isinstance(part, Tensor):
        return part.nbytes
    return sum(stored_bytes(getattr(part, f.name)) for f in fields(part)) if is_dataclass(part) else 0
