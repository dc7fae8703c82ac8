"""Online softmax (lesson 04): partial attention over some of the keys, and how two partial results merge.

Milakov and Gimelshein 2018 (arXiv 1805.02867); merging by log-sum-exp as in Flash-Decoding (Dao et al. 2023).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Partial:
    """Partial attention over some of the keys, from which the output follows.

    m: the highest score (..., T, 1). l: the sum of exp(score - m) (..., T, 1). o: the same sum over values (..., T,
    d_v). Without any keys m = -inf, l = 0, o = 0.

    >>> state = Partial.of(torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0], [20.0]]))
    >>> state.l.item()  # exp(1 - 2) + exp(2 - 2)
    1.3678...
    """

    m: Tensor
    l: Tensor  # noqa: E741 (the papers' letter)
    o: Tensor

    @classmethod
    def empty(cls, q: Tensor, width: int) -> "Partial":
        """The state of queries q (..., T, d) before any key. width: d_v, the head dimension of the values."""
        m = q.new_full((*q.shape[:-1], 1), -torch.inf)
        return cls(m, torch.zeros_like(m), q.new_zeros((*q.shape[:-1], width)))

    @classmethod
    def of(cls, scores: Tensor, values: Tensor) -> "Partial":
        """Partial attention over one block: scores (..., T, n), -inf where masked; values (..., n, d_v)."""
        m = scores.amax(-1, keepdim=True)
        p = (scores - finite(m)).exp()
        return cls(m, p.sum(-1, keepdim=True), p @ values)

    def merge(self, other: "Partial") -> "Partial":
        """Merge two partial results: rescale both to the larger maximum, then add. The order does not matter."""
        m = torch.maximum(self.m, other.m)
        mine, theirs = ((x.m - finite(m)).exp() for x in (self, other))
        return Partial(m, self.l * mine + other.l * theirs, self.o * mine + other.o * theirs)

    def output(self) -> Tensor:
        """The attention output o / l, (..., T, d_v); zeros for a query without keys."""
        return self.o / self.l.where(self.l > 0, 1)

    def logsumexp(self) -> Tensor:
        """m + log l, (..., T), all that merging outputs needs of m and l; -inf for a query without keys."""
        return (self.m + self.l.log()).squeeze(-1)


def merge_outputs(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the outputs (n, ..., T, d_v) and logsumexps (n, ..., T) of n pieces -> (..., T, d_v), (..., T).

    Piece i has the weight exp(logsumexp_i - logsumexp of all): its share of the full softmax's denominator.
    """
    if outputs.shape[:-1] != logsumexps.shape or not len(outputs):
        raise ValueError(
            f"each output needs a logsumexp per query: outputs {tuple(outputs.shape)}, "
            f"logsumexps {tuple(logsumexps.shape)}"
        )
    whole = logsumexps.logsumexp(0)
    weights = (logsumexps - finite(whole)).exp()
    return (weights[..., None] * outputs).sum(0), whole


def finite(m: Tensor) -> Tensor:
    """m (...) with 0 in place of -inf, so that exp(-inf - m) is 0 and not NaN."""
    return m.where(m > -torch.inf, 0)
