"""Rotary position embeddings (lessons 01, 16): a query or key is turned by angles that grow with its position.

The product of a query at position m and a key at position n depends on m - n alone. Two rotations add up: R(a) R(b) =
R(a + b). Source: RoPE, Su et al. 2021 (arXiv 2104.09864).
"""

import torch
from torch import Tensor

from lessons_lib.measure.config import ModelConfig


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin (context, d) in float64; the first half of sin holds the minus sign of the rotation.

    rope_scaling (factor, low, high, original context) extends the context as in Llama 3.1 (Meta, llama-models,
    apply_scaling). Channels that turn fewer than `low` times in the original context are slowed down by `factor`. Those
    with more than `high` turns stay as they are, and those in between are interpolated.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device="cpu")
    frequencies = config.rope_theta ** -(half / config.head_dim)
    if config.rope_scaling:
        # interpolate each frequency between itself (kept = 1) and frequency / factor (kept = 0)
        factor, low, high, first_context = config.rope_scaling
        turns = first_context * frequencies / (2 * torch.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / factor)
    angles = torch.arange(config.max_position_embeddings, dtype=torch.float64, device="cpu")[:, None] * frequencies
    return angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embeddings to x (T, heads, d) with cos and sin (T, 1, d); channel i is paired with i + d/2."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
