"""How children are drawn from a distribution q (lessons 06, 09): a draft model's own, or a head's."""

import torch
from torch import Tensor


def draw(q: Tensor, count: int, mode: str, generator: torch.Generator | None) -> list[int]:
    """q (V,) -> tokens in draw order: `count` if "iid", else as many different ones as have q > 0 at most."""
    if mode == "iid":
        return torch.multinomial(q, count, replacement=True, generator=generator).tolist()
    return torch.multinomial(q, min(count, int(q.count_nonzero())), generator=generator).tolist()
