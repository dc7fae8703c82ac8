"""Random heads for attention, in float64."""

import pytest
import torch


@pytest.fixture
def heads():
    """heads(H, H_kv, T, S, d=8) -> q (H, T, d), keys and values (H_kv, S, d), always the same for the same sizes."""

    def draw(H=1, H_kv=1, T=5, S=5, d=8, dtype=torch.float64):
        generator = torch.Generator().manual_seed(1000 * H + 100 * H_kv + 10 * T + S)
        shapes = (H, T, d), (H_kv, S, d), (H_kv, S, d)
        return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]

    return draw
