"""What multiplies in place of a weight (lesson 10): in a few bytes, eagerly or as a compiler sees it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lessons_lib.compiling import CHUNK


class Matrix(ABC):
    """A matrix (N, K) that can be multiplied with.

    constant: whether a compiler has to see its codes as constants, and to tune the products. native: whether a kernel
    of ours in C++ multiplies.
    """

    constant = native = False

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """x (T, K) -> x Wᵀ (T, N) in x's dtype. ValueError for dtypes that a kernel does not take."""

    def traced(self, x: Tensor) -> Tensor:
        """The same in operations that a compiler makes the most of."""
        return self.multiply(x)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept, which one product reads; what two of them share counts once."""
        return storage_bytes(tensors(self))


def storage_bytes(parts: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors; what two of them share counts once."""
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}.values())


def tensors(part: Any) -> list[Tensor]:
    """All tensors of a matrix, of the matrices within it and of the dataclasses that it keeps."""
    if isinstance(part, Tensor):
        return [part]
    return [x for inner in vars(part).values() for x in tensors(inner)] if hasattr(part, "__dict__") else []


def multiply_levels(x: Tensor, levels: Tensor) -> Tensor:
    """x (T, K) times levels (N, K) int8 -> (T, N) in x's dtype; few of the levels are wide at a time."""
    rows = max(1, CHUNK // levels.shape[1])
    return torch.cat([x @ part.to(x.dtype).T for part in levels.split(rows)], 1)
