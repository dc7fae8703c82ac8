"""LoRA (lesson 13): a frozen linear layer W computes as W + (alpha / r) B A, and only A and B are trained.

Hu et al. 2021 (arXiv 2106.09685). B starts at zero, so at first nothing changes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.models.decoder import Decoder
from lessons_lib.quantization.linear import QuantizedLinear, sharing_copy


class LoRALinear(nn.Module):
    """A linear layer (N, K) with a low-rank adapter: x Wᵀ + scale·(x Aᵀ) Bᵀ, A (r, K) and B (N, r).

    random: generator for the initial values of A.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, random: torch.Generator):
        super().__init__()
        self.linear, self.scale = linear, alpha / rank
        like, columns = linear.weight, linear.in_features
        self.A = nn.Parameter(torch.randn(rank, columns, generator=random).to(like) * columns**-0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank).to(like))

    def forward(self, x: Tensor) -> Tensor:
        """x (T, K) -> (T, N)."""
        return self.linear(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


def adapted(decoder: Decoder, rank: int, alpha: float, seed: int = 0) -> Decoder:
    """A copy of the decoder with an adapter on every matrix of every layer, but not on the LM head; weights are shared.

    seed: of the initial values. The matrices must not be quantized.
    """
    if any(isinstance(module, QuantizedLinear) for module in decoder.layers.modules()):
        raise ValueError("adapters are for full weights; adapt the decoder that this quantized one was made from")
    copy, random = sharing_copy(decoder), torch.Generator().manual_seed(seed)
    for layer in copy.layers:
        for name, linear in [(name, part) for name, part in layer.named_children() if isinstance(part, nn.Linear)]:
            setattr(layer, name, LoRALinear(linear, rank, alpha, random))
    return copy


def adapters(decoder: Decoder) -> dict[str, nn.Parameter]:
    """The weights A and B of all adapters by name ("layers.0.qkv.A")."""
    found = ((name, module) for name, module in decoder.named_modules() if isinstance(module, LoRALinear))
    return {f"{name}.{part}": getattr(module, part) for name, module in found for part in ("A", "B")}


@torch.no_grad()
def merge_in_place(decoder: Decoder) -> None:
    """Add the adapters of an adapted decoder to the weights that it shares with the original decoder."""
    for part in decoder.modules():
        if isinstance(part, LoRALinear):
            part.linear.weight += part.scale * part.B @ part.A
            part.B.zero_()
