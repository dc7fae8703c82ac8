"""What rounding costs in quality (lesson 10): perplexity of a text, and agreement of greedy tokens.

A text is cut into windows that do not overlap. One forward pass processes each window and predicts every token of it
but the first. A token's negative log-likelihood (nll) is in nats, computed in float64 whatever the dtype of the logits.
Two models are compared token by token on the same text: most variation between windows affects both alike, so paired
differences are much more precise than two separate perplexities.
Windows as in GPTQ's evaluation (Frantar et al. 2022, https://github.com/IST-DASLab/gptq).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.measure.clock import Interval

WINDOW = 512  # tokens per window; 2,048 is usual in papers and lowers the perplexity
CHUNK = 64  # rows of logits converted to float64 at a time
Logits = Callable[[list[int]], Tensor]  # ids (T,) -> logits (T, V)


@dataclass(frozen=True)
class Reading:
    """Evaluation of one model on one text: for each window a tensor (n,) of nll, and one of argmax tokens (`best`).

    divergence: KL(p || q) in nats per token, where p belongs to the reference model of `read`; empty without one.
    """

    nll: tuple[Tensor, ...]
    best: tuple[Tensor, ...]
    divergence: tuple[Tensor, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return sum(map(len, self.nll))

    @property
    def mean(self) -> float:
        """Mean nll per token in nats."""
        return float(torch.cat(self.nll).mean())

    @property
    def perplexity(self) -> float:
        """exp of the mean nll: the number of equally likely tokens that would be as hard to predict."""
        return math.exp(self.mean)

    @property
    def mean_divergence(self) -> float:
        """Mean KL(p || q) per token. Raises ValueError if the text was read without a reference model."""
        if not self.divergence:
            raise ValueError("nothing was read beside this; pass beside=... to read")
        return float(torch.cat(self.divergence).mean())


def windows(ids: Sequence[int], window: int = WINDOW) -> list[list[int]]:
    """Cut ids into windows of `window` tokens. The last may be shorter; it is dropped if it predicts no token."""
    pieces = [list(ids[start : start + window]) for start in range(0, len(ids), window)]
    return [piece for piece in pieces if len(piece) > 1]


@torch.no_grad()
def read(
    logits: Logits, ids: Sequence[int], window: int = WINDOW, beside: Logits | None = None, among: Tensor | None = None
) -> Reading:
    """Evaluate a model on a text. beside: a reference model, for the divergence.

    among (V,) bool: tokens that count, such as the vocabulary of a trimmed head; the others are context only. Raises
    ValueError for a text without a token that counts, a token that counts but has probability 0, and logits that are
    NaN or not (T, V).
    """
    if window < 2 or len(ids) < 2:
        raise ValueError(f"a window predicts all tokens but its first: {len(ids)} ids in windows of {window} are none")
    parts = [_read(logits, piece, beside, among) for piece in windows(ids, window)]
    nll, best, divergence = (tuple(part for part in parts if len(part)) for parts in zip(*parts, strict=True))
    if not nll:
        raise ValueError("no token of this text counts; pass another text, or among=None")
    return Reading(nll, best, divergence)


def ratio(reading: Reading, reference: Reading) -> Interval:
    """Perplexity of `reading` over that of `reference`, which must be of the same text.

    The 95% interval treats windows as random samples: 1.96 standard errors of the mean paired difference. With one
    window no interval is known, and it spans everything.
    """
    # mean paired difference of nll per token
    sums = torch.stack([(a - b).sum() for a, b in _paired(reading.nll, reference.nll)])
    counts = torch.tensor([float(len(part)) for part in reading.nll], dtype=torch.float64)
    mean = sums.sum() / counts.sum()
    # standard error of this mean, with windows as independent samples
    windows = len(counts)
    spread = (sums - mean * counts).square().sum() * windows / max(windows - 1, 1)
    error = float(spread.sqrt() / counts.sum()) if windows > 1 else math.inf
    low, high = (math.exp(min(float(mean) + sign * 1.96 * error, 700)) for sign in (-1, 1))
    return Interval(math.exp(mean), low, high)


def agreement(reading: Reading, reference: Reading) -> float:
    """Share of positions at which two readings of the same text have the same argmax token."""
    same = [(a == b).double() for a, b in _paired(reading.best, reference.best)]
    return float(torch.cat(same).mean())


def _read(logits: Logits, ids: list[int], beside: Logits | None, among: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """nll, argmax token and divergence (or an empty tensor) of the counted tokens of one window."""
    said = _checked(logits(ids), ids)[:-1]
    other = None if beside is None else _checked(beside(ids), ids)[:-1]
    next_ids = torch.tensor(ids[1:], device=said.device)
    counted = torch.ones_like(next_ids, dtype=torch.bool) if among is None else among.to(said.device)[next_ids]
    said, next_ids = said[counted], next_ids[counted]
    nll = torch.cat([_nll(*part) for part in zip(said.split(CHUNK), next_ids.split(CHUNK), strict=True)])
    if not nll.isfinite().all():
        lost = int(next_ids[~nll.isfinite()][0])
        raise ValueError(f"the model gives token {lost} no probability at all; pass among=, the tokens that it scores")
    apart = nll[:0]
    if other is not None:
        other = other[counted].to(said)
        apart = torch.cat([_divergence(*part) for part in zip(other.split(CHUNK), said.split(CHUNK), strict=True)])
    return nll.cpu(), said.argmax(-1).cpu(), apart.cpu()


def _nll(said: Tensor, next_ids: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(said.double(), next_ids, reduction="none")


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) in nats of each row of logits, in float64. A token with p = 0 adds nothing."""
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1)


def _checked(said: Tensor, ids: list[int]) -> Tensor:
    if said.ndim != 2 or len(said) != len(ids):
        raise ValueError(f"{len(ids)} ids need logits ({len(ids)}, V), a row after each, not {tuple(said.shape)}")
    if max(ids) >= said.shape[1] or min(ids) < 0:
        raise ValueError(f"ids from {min(ids)} to {max(ids)} do not fit logits of {said.shape[1]} tokens; check which "
                         "tokenizer made them")  # fmt: skip
    if said.isnan().any():
        raise ValueError("these logits hold NaN; the model, or its rounding, is broken")
    return said


def _paired(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    if [len(part) for part in ours] != [len(part) for part in theirs]:
        raise ValueError("these are not readings of the same tokens; read both with the same text, window and among")
    return list(zip(ours, theirs, strict=True))


# --- Counts against a distribution


def chi_square(seen: Tensor, distribution: Tensor) -> tuple[float, float]:
    """Pearson's chi-square test of counts against a distribution -> (statistic, p-value).

    seen: counts; distribution: expected shares that sum to 1; both of one shape. The p-value is the probability of a
    statistic at least as large if the counts follow the distribution. It is reliable where about five of each are
    expected. Raises ValueError if something was counted whose probability is 0.
    """
    if seen.shape != distribution.shape:
        raise ValueError(
            f"counts of shape {tuple(seen.shape)} do not fit a distribution of shape {tuple(distribution.shape)}"
        )
    if bool((seen[distribution == 0] > 0).any()):
        raise ValueError("something was counted that the distribution rules out; no statistic is needed to refuse it")
    possible = distribution > 0
    expected = distribution[possible].double() * float(seen.sum())
    statistic = ((seen[possible].double() - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(statistic), float(torch.special.gammaincc(freedom, statistic / 2))
