"""What Medusa heads are blamed for (lesson 09): the surprise of head k at the token k places behind the next one.

Along the target's own texts, whose states were kept (`training.collect`). Cai et al. 2024 (arXiv 2401.10774), 2.2.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.models.medusa import MedusaHeads
from lessons_lib.training.batched import Text

ROWS = 256  # positions at a time: all heads' scores of 2,000 positions would take gigabytes
MISSING = -100  # the label where a text has ended


def batch(texts: Sequence[Text], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `examples` of several texts (at least one) for `count` heads, one behind the other."""
    return tuple(map(torch.cat, zip(*(examples(text, count) for text in texts), strict=True)))


def examples(text: Text, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """States (T, D) from the prompt's last token on, the tokens chosen from them (T,), and those to guess there (T, K).

    The state in row i chose token i + 1, so head k = 1, 2, ... shall guess token i + 1 + k; MISSING beyond the end.
    """
    start = text.prompt_length - 1
    ids = torch.tensor(text.ids + [MISSING] * count)
    rows = torch.arange(start, len(text.ids) - 1)
    return text.hidden[start:], ids[rows + 1], ids[rows[:, None] + 2 + torch.arange(count)]


def backward(
    heads: MedusaHeads, states: Tensor, chosen: Tensor, labels: Tensor, decay: float, weight: float = 1.0
) -> Tensor:
    """Add the gradients of weight * sum of decay^k L_k -> each head's mean cross-entropy L_k (K,) in nats.

    states (T, D), chosen (T,), labels (T, K): as `examples` gives them.
    """
    labels = scored(heads, labels)
    counts = (labels != MISSING).sum(0).clamp_min(1).to(heads.lm_head.device)
    share = weight * decay ** torch.arange(1, heads.count + 1, device=counts.device) / counts
    sums = torch.zeros(heads.count, device=counts.device)
    for rows, known, wanted in zip(*(each.split(ROWS) for each in (states, chosen, labels)), strict=True):
        losses = surprise(scores_of(heads, rows, known), wanted).sum(0)
        (losses * share).sum().backward()
        sums += losses.detach()
    return sums / counts


def scored(heads: MedusaHeads, labels: Tensor) -> Tensor:
    """labels (...) -> their numbers among the tokens that the heads score; MISSING for those that they do not."""
    if heads.kept is None:
        return labels
    numbers = torch.full((heads.vocab_size,), MISSING)
    numbers[heads.kept.cpu()] = torch.arange(heads.scored)
    return numbers[labels.clamp_min(0)].where(labels != MISSING, MISSING)


def total(losses: Tensor, decay: float) -> float:
    """The sum over heads k = 1, 2, ... of lambda^k times the head's loss; losses (K,), decay: lambda."""
    return sum(decay**k * loss for k, loss in enumerate(losses.tolist(), 1))


def scores_of(heads: MedusaHeads, states: Tensor, chosen: Tensor) -> Tensor:
    """states (T, D), tokens chosen from them (T,) -> scores (T, K, scored), the products in the LM head's format."""
    kind = heads.lm_head.dtype
    with torch.autocast(heads.lm_head.device.type, kind) if kind == torch.bfloat16 else nullcontext():
        return heads.scores(states.to(heads.lm_head), chosen=chosen)


def surprise(scores: Tensor, labels: Tensor) -> Tensor:
    """scores (T, K, scored), `scored` labels (T, K) -> the cross-entropy (T, K) in nats, 0 where one is MISSING."""
    exact = scores.flatten(0, 1).to(torch.promote_types(scores.dtype, torch.float32))
    labels = labels.to(scores.device)
    return F.cross_entropy(exact, labels.flatten(), ignore_index=MISSING, reduction="none").view(labels.shape)


@torch.no_grad()
def judge(heads: MedusaHeads, texts: Sequence[Text], top_k: int = 10) -> dict[str, list]:
    """Along texts: each head's mean cross-entropy (loss, K, in nats) over the tokens that it scores, and the share of
    positions at which its i-th favourite is right (accuracies, K by top_k), of those where there is a token to guess.
    """
    top_k = min(top_k, heads.scored)
    loss, right, counts, known = torch.zeros(heads.count), torch.zeros(heads.count, top_k), *torch.zeros(2, heads.count)
    for states, chosen, labels in (examples(text, heads.count) for text in texts):
        scores, wanted = scores_of(heads, states, chosen), scored(heads, labels)
        best = scores.topk(top_k).indices.cpu()
        loss += surprise(scores, wanted).sum(0).cpu()
        right += (best == wanted[..., None]).sum(0)
        counts += (labels != MISSING).sum(0)
        known += (wanted != MISSING).sum(0)
    shares = right / counts.clamp_min(1)[:, None]
    return {"loss": (loss / known.clamp_min(1)).tolist(), "accuracies": shares.tolist()}
