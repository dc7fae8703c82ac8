"""Softmax over pieces (lesson 04): what a query knows after some of its keys, and how two such states merge.

Milakov and Gimelshein 2018 (arXiv 1805.02867); merging by log-sum-exp as in Flash-Decoding (Dao et al. 2023).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Partial:
    """Queries that have looked at some of their keys: m the highest score, l the sum of exp(score - m), o the same
    sum over values. Shapes (..., T, 1), (..., T, 1), (..., T, d_v); after no keys m = -inf, l = 0, o = 0.

    >>> state = Partial.of(torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0], [20.0]]))
    >>> state.l.item()  # exp(1 - 2) + exp(2 - 2)
    1.3678...
    """

    m: Tensor
    l: Tensor  # noqa: E741 (the papers' letter)
    o: Tensor

    @classmethod
    def empty(cls, q: Tensor, width: int) -> "Partial":
        """The state of queries q (..., T, d) before any key; width: d_v, of the values."""
        m = q.new_full((*q.shape[:-1], 1), -torch.inf)
        return cls(m, torch.zeros_like(m), q.new_zeros((*q.shape[:-1], width)))

    @classmethod
    def of(cls, scores: Tensor, values: Tensor) -> "Partial":
        """One piece alone: scores (..., T, n), -inf where a query may not look; values (..., n, d_v)."""
        m = scores.amax(-1, keepdim=True)
        p = (scores - finite(m)).exp()
        return cls(m, p.sum(-1, keepdim=True), p @ values)

    def merge(self, other: "Partial") -> "Partial":
        """Both together: each is rescaled to the higher of the two maxima, then they add up. In any order."""
        m = torch.maximum(self.m, other.m)
        mine, theirs = ((x.m - finite(m)).exp() for x in (self, other))
        return Partial(m, self.l * mine + other.l * theirs, self.o * mine + other.o * theirs)

    def output(self) -> Tensor:
        """(..., T, d_v): the mixture, o / l; zeros for a query that has seen no key."""
        return self.o / self.l.where(self.l > 0, 1)

    def logsumexp(self) -> Tensor:
        """(..., T): m + log l, all that is needed of m and l to merge outputs; -inf for a query without keys."""
        return (self.m + self.l.log()).squeeze(-1)


def merge_outputs(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    """Finished results over n pieces, (n, ..., T, d_v) and (n, ..., T) -> output (..., T, d_v), logsumexp (..., T).

    Piece i weighs exp(logsumexp_i - logsumexp of all): its share of the whole softmax's denominator.
    Raises ValueError if the shapes do not belong together.
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
    """m (...) with 0 for -inf: what may be subtracted from -inf, so that exp gives 0 and not NaN."""
    return m.where(m > -torch.inf, 0)
