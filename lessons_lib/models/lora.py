"""Low-rank adapters (lesson 09): a frozen matrix W computes as W + (alpha / r) B A, of which A and B are trained.

Hu et al. 2021 (arXiv 2106.09685). B begins at zero, so at first nothing changes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.models.copies import sharing_copy
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.kernels import Kernels


class LowRank(nn.Module):
    """A way to multiply, for `Kernels`: x (T, D) times weight (N, D), with its adapter if it is one of `weights`.

    rank: r, A being (r, D) and B (N, r). alpha: the adapter counts alpha / r. seed: of A's random start.
    """

    def __init__(self, weights: Sequence[Tensor], rank: int = 8, alpha: float = 16.0, seed: int = 0):
        super().__init__()
        self.weights, self.scale = list(weights), alpha / rank  # kept, so that ids stay theirs
        self.places = {id(weight): place for place, weight in enumerate(self.weights)}
        random = torch.Generator().manual_seed(seed)
        first = [torch.randn(rank, w.shape[1], generator=random).to(w) * w.shape[1] ** -0.5 for w in self.weights]
        self.A = nn.ParameterList(first)
        self.B = nn.ParameterList(torch.zeros(w.shape[0], rank).to(w) for w in self.weights)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x (T, D), weight (N, D) -> (T, N)."""
        plain, place = F.linear(x, weight), self.places.get(id(weight))
        return plain if place is None else plain + self.scale * F.linear(F.linear(x, self.A[place]), self.B[place])

    def kernels(self) -> Kernels:
        """What a decoder's forward takes to compute with the adapters."""
        return Kernels(multiply=self)


def adapted(decoder: Decoder, rank: int, alpha: float, seed: int = 0) -> LowRank:
    """Adapters for every matrix of every layer; the LM head stays as it is."""
    modules = decoder.layers.modules()
    return LowRank([module.weight for module in modules if isinstance(module, nn.Linear)], rank, alpha, seed)


@torch.no_grad()
def merged(decoder: Decoder, adapters: LowRank) -> Decoder:
    """A decoder whose layers hold the sums, so that it decodes as fast as before; all else is shared."""
    whole = sharing_copy(decoder, but=adapters.places)
    for theirs, ours in zip(decoder.layers.modules(), whole.layers.modules(), strict=True):
        if isinstance(theirs, nn.Linear):
            place = adapters.places[id(theirs.weight)]
            ours.weight += adapters.scale * adapters.B[place] @ adapters.A[place]
    return whole
