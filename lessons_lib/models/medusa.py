"""Medusa heads (lesson 09): small heads on a model's final state guess the tokens behind the next one.

Cai et al. 2024 (arXiv 2401.10774). The state at position t, after the final norm, is what the model's own head reads
to choose token t + 1; head k = 1, 2, ... reads it too and guesses token t + k + 1. Untrained, every head equals the
model's own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def shared_parameters(count: int, width: int, blocks: int = 1) -> int:
    """K R (D^2 + D): parameters of `count` heads that all end in the model's own LM head."""
    return count * blocks * (width**2 + width)


def own_parameters(count: int, width: int, vocab_size: int, blocks: int = 1) -> int:
    """K (R (D^2 + D) + V D): parameters of heads as published, each with an LM head of its own."""
    return shared_parameters(count, width, blocks) + count * vocab_size * width


class ResidualBlock(nn.Linear):
    """x + silu(W x + b), (..., D) -> (..., D); W and b begin at zero, so at first it changes nothing.

    The authors' code leaves b as it was drawn, and so does not start from the model's own head.
    """

    def __init__(self, width: int):
        super().__init__(width, width)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(super().forward(x))


class MedusaHeads(nn.Module):
    """lm_head (V, D): the model's own head. count: heads (K). blocks: residual blocks of each (R).

    own: each head gets a trainable copy of the LM head, as published. Otherwise all share the model's, which is not
    trained and not a parameter: the rows of all heads go through it in one product. Weights have its device and dtype.
    ValueError for counts below 1.
    """

    def __init__(self, lm_head: Tensor, count: int = 4, blocks: int = 1, own: bool = False):
        super().__init__()
        if count < 1 or blocks < 1:
            raise ValueError(f"at least one head of one block is needed, not {count} of {blocks}")
        self.vocab_size, self.width = lm_head.shape
        self.count, self.blocks = count, blocks
        lm_head = lm_head.detach()
        stacks = [nn.Sequential(*(ResidualBlock(self.width) for _ in range(blocks))) for _ in range(count)]
        self.stacks = nn.ModuleList(stacks).to(lm_head.device, lm_head.dtype)
        self.own = nn.ParameterList(nn.Parameter(lm_head.clone()) for _ in range(count if own else 0))
        self.register_buffer("lm_head", lm_head, persistent=False)

    def states(self, final: Tensor, count: int | None = None) -> Tensor:
        """(T, D) after the final norm -> (T, K, D), what each of the first `count` heads makes of it."""
        return torch.stack([stack(final) for stack in self.stacks[:count]], dim=1)

    def forward(self, final: Tensor, count: int | None = None) -> Tensor:
        """(T, D) after the final norm -> scores (T, K, V) of the first `count` heads (None: of all)."""
        states = self.states(final, count)
        if not self.own:
            return F.linear(states, self.lm_head)
        pairs = zip(states.unbind(1), self.own, strict=False)  # the first `count` of them
        return torch.stack([F.linear(rows, head) for rows, head in pairs], dim=1)
