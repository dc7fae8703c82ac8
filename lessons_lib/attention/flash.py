"""FlashAttention (lesson 04): online softmax, block by block, so that the T x S matrix never exists as a whole.

Online softmax: Milakov and Gimelshein 2018 (arXiv 1805.02867). `tiled`: Dao et al. 2022 (arXiv 2205.14135), in the loop
order of Dao 2023 (arXiv 2307.08691), Algorithm 1. `split_kv`: Flash-Decoding, Dao, Haziza, Massa and Sizov 2023
(pytorch.org/blog/flash-decoding). All heads run at once here; on a GPU each head is a separate piece of work.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.attention.heads import Sight, check, prepared, spans
from lessons_lib.attention.traffic import Memory


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


def finite(m: Tensor) -> Tensor:
    """m (...) with 0 in place of -inf, so that exp(-inf - m) is 0 and not NaN."""
    return m.where(m > -torch.inf, 0)


def tiled(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_q: int = 64,
    block_k: int = 64,
    causal: bool = False,
    memory: Memory | None = None,
) -> tuple[Tensor, Tensor]:
    """FlashAttention 2: as `naive`, plus the logsumexp of each query's scores -> (H, T, d_v), (H, T).

    The outer loop runs over blocks of queries, the inner one over keys. Blocks above the causal diagonal are skipped.
    The output is in q's dtype, the logsumexp in float32 or better. A query without keys returns zeros and -inf. memory:
    counts the elements moved.
    """
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q={block_q} and block_k={block_k} must be at least 1")
    memory, dtype, sight = memory or Memory(), q.dtype, Sight(q.shape[1], keys.shape[1], causal)
    q, keys, values = prepared(q, keys, values)
    out, logsumexp = q.new_empty((*q.shape[:-1], values.shape[-1])), q.new_empty(q.shape[:-1])
    # outer loop: a block of queries stays in fast memory
    for rows in spans(sight.queries, block_q):
        block, state = memory.load(piece(q, rows)), Partial.empty(piece(q, rows), values.shape[-1])
        # inner loop: stream the keys and values past it
        for columns in spans(sight.reaches(rows), block_k):
            columns = range(columns.start, min(columns.start + block_k, sight.keys))  # a block is loaded whole
            k, v = memory.load(piece(keys, columns)), memory.load(piece(values, columns))
            scores = block @ k.mT * block.shape[-1] ** -0.5
            if (seen := sight.tile(rows, columns, q.device)) is not None:
                scores = scores.masked_fill(~seen, -torch.inf)
            state = state.merge(Partial.of(scores, v))
        piece(out, rows).copy_(memory.write(state.output()))  # divided by l once, at the end
        logsumexp[..., rows.start : rows.stop] = memory.write(state.logsumexp())
    return out.flatten(0, 1).to(dtype), logsumexp.flatten(0, 1)


def piece(x: Tensor, span: range) -> Tensor:
    """The tokens of `span` in x (..., tokens, channels), as a view."""
    return x[..., span.start : span.stop, :]


def split_kv(q: Tensor, keys: Tensor, values: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Split-KV attention: in decoding there is one query, so the work is split over the keys -> as `tiled`.

    q (H, T, d), keys (H_kv, S, d), values (H_kv, S, d_v). Each of `splits` workers attends to S / splits keys (rounded
    up; the last may have fewer, or none) and writes its result. One more pass reads all results and merges them.
    There is no mask: every query attends to all keys, as in decoding.
    """
    check(q, keys, values)
    if splits < 1:
        raise ValueError(f"splits={splits} must be at least 1")
    if not (q.shape[1] and keys.shape[1]):
        raise ValueError("without queries or keys there is nothing to split")
    size = -(-keys.shape[1] // splits)
    # 1. each worker attends to its own keys
    shares = [slice(at, at + size) for at in range(0, splits * size, size)]
    parts = [tiled(q, keys[:, share], values[:, share], block_q=q.shape[1]) for share in shares]
    # 2. one more pass merges the results
    out, logsumexp = merge_outputs(*(torch.stack(found) for found in zip(*parts, strict=True)))
    return out.to(q.dtype), logsumexp


def merge_outputs(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the outputs (n, ..., T, d_v) and logsumexps (n, ..., T) of n pieces -> (..., T, d_v), (..., T).

    Piece i has the weight exp(logsumexp_i - logsumexp of all): its share of the full softmax's denominator.
    """
    whole = logsumexps.logsumexp(0)
    weights = (logsumexps - finite(whole)).exp()
    return (weights[..., None] * outputs).sum(0), whole
