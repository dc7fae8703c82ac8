"""Which cache entries a token may attend to (lessons 01, 06, 08, 09): one meaning of a mask everywhere.

A mask is a bool tensor (T, S), True = may attend; row t belongs to the t-th token of the forward.
"""

import torch
from torch import Tensor


def causal_mask(count: int, entries: int, device=None) -> Tensor:
    """(T, S): the T newest of S entries, each seeing itself and all before it (aligned to the lower right)."""
    return torch.ones(count, entries, dtype=torch.bool, device=device).tril(entries - count)
