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
    counts = (labels != MISSING).sum(0).clamp_min(1).to(heads.lm_head.device)
    share = weight * decay ** torch.arange(1, heads.count + 1, device=counts.device) / counts
    sums = torch.zeros(heads.count, device=counts.device)
    for rows, known, wanted in zip(*(each.split(ROWS) for each in (states, chosen, labels)), strict=True):
        losses = surprise(scores_of(heads, rows, known), wanted).sum(0)
        (losses * share).sum().backward()
        sums += losses.detach()
    return sums / counts


def total(losses: Tensor, decay: float) -> float:
    """The sum over heads k = 1, 2, ... of lambda^k times the head's loss; losses (K,), decay: lambda."""
    return sum(decay**k * loss for k, loss in enumerate(losses.tolist(), 1))


def scores_of(heads: MedusaHeads, states: Tensor, chosen: Tensor) -> Tensor:
    """states (T, D), tokens chosen from them (T,) -> scores (T, K, V), the products in the LM head's format."""
    kind = heads.lm_head.dtype
    with torch.autocast(heads.lm_head.device.type, kind) if kind == torch.bfloat16 else nullcontext():
        return heads(states.to(heads.lm_head), chosen=chosen)


def surprise(scores: Tensor, labels: Tensor) -> Tensor:
    """scores (T, K, V), labels (T, K) -> the cross-entropy (T, K) in nats, 0 where the label is MISSING."""
    exact = scores.flatten(0, 1).to(torch.promote_types(scores.dtype, torch.float32))
    labels = labels.to(scores.device)
    return F.cross_entropy(exact, labels.flatten(), ignore_index=MISSING, reduction="none").view(labels.shape)


@torch.no_grad()
def judge(heads: MedusaHeads, texts: Sequence[Text], top_k: int = 10) -> dict[str, list]:
    """Along texts: each head's mean cross-entropy (loss, K, in nats) and the share of positions at which its i-th
    favourite is right (accuracies, K by top_k), of those where there is a token to guess."""
    top_k = min(top_k, heads.vocab_size)
    loss, right, counts = torch.zeros(heads.count), torch.zeros(heads.count, top_k), torch.zeros(heads.count)
    for states, chosen, labels in (examples(text, heads.count) for text in texts):
        scores = scores_of(heads, states, chosen)
        best = scores.topk(top_k).indices.cpu()
        loss += surprise(scores, labels).sum(0).cpu()
        right += (best == labels[..., None]).sum(0)
        counts += (labels != MISSING).sum(0)
    counts = counts.clamp_min(1)
    return {"loss": (loss / counts).tolist(), "accuracies": (right / counts[:, None]).tolist()}
