"""Rotary embeddings: rotations add up, and a product depends on the distance alone."""

import torch

from lessons_lib.attention.rotary import rotary_tables, rotate
from lessons_lib.models import tiny
from lessons_lib.models.decoder import decoder_config


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-12) -> bool:
    return torch.allclose(a, b, rtol=0, atol=atol)


def test_rotations_add_up_and_only_the_distance_counts():
    cos, sin = rotary_tables(decoder_config(tiny(context=1024).config))
    turn = lambda x, by: rotate(x, cos[abs(by)], sin[abs(by)] * (1 if by > 0 else -1))  # noqa: E731
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert close(turn(turn(k, 300), 400), turn(k, 700))
    assert close(turn(turn(k, 300), -300), k)
    assert close(turn(q, 30) @ turn(k, 10), turn(q, 730) @ turn(k, 710))
    assert not close(turn(q, 30) @ turn(k, 10), turn(q, 730) @ turn(k, 10), 1e-3)
