"""How children are drawn from a distribution q (lessons 06, 09): a draft model's own, or a head's."""

import torch
from torch import Tensor

from lessons_lib.decoding import acceptance
from lessons_lib.decoding.acceptance import Sampling
from lessons_lib.decoding.proposal import check_mode


def draw(q: Tensor, count: int, mode: str, generator: torch.Generator | None) -> list[int]:
    """q (V,) -> tokens in draw order: `count` if "iid", else as many different ones as have q > 0 at most.

    RuntimeError of torch for a q without mass, or that holds NaN.
    """
    if mode == "iid":
        return acceptance.draw(q, count, generator, replacement=True)
    return acceptance.draw(q, min(count, int(q.count_nonzero())), generator)


def check_drawing(mode: str, sampling: Sampling | None) -> None:
    """ValueError for an unknown mode, and for a law to draw from where nothing is drawn."""
    check_mode(mode)
    if mode == "point" and sampling:
        raise ValueError('mode "point" draws nothing; choose mode "iid" or leave `sampling` out')
