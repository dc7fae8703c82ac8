"""Distillation (lesson 06): train a small draft model on the target's distribution, on the target's own text.

Hinton et al. 2015 (arXiv 1503.02531); on the target's own text: Zhou et al. 2023 (DistillSpec, arXiv 2310.08461).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import TrimmedDecoder, own_weights, start_from
from lessons_lib.training.collect import Text, frequent
from lessons_lib.training.loop import TrainingRun, optimizers, read_texts, resume, stored, train, update

ROWS = 256  # positions that the loss computes at a time


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of smol-draft.

    layers: indices of the target's layers to start from. kept: vocabulary size of the trimmed head. tokens: per step.
    rate, warmup: peak learning rate, steps of linear warm-up. muon: 1 or 0, whether Muon trains the matrices. hard:
    weight of the cross-entropy with the target's argmax; the rest is the weight of KL. prompt: one prompt token in this
    many (at least 1) counts, others in every step. skip: first tokens of every text (the chat template), which do not
    count.
    """

    layers: tuple[int, ...] = (0, 1, 29)
    kept: int = 16_384
    steps: int = 1_900
    tokens: int = 2_048
    rate: float = 8e-3
    warmup: int = 100
    muon: int = 1
    hard: float = 0.3
    prompt: int = 5
    skip: int = 24
    seed: int = 0


@dataclass(kw_only=True)
class DraftRun(TrainingRun):
    """Training run of a draft.

    Its curve holds the loss and the share of positions where draft and target have the same argmax.
    """

    draft: TrimmedDecoder

    def state(self) -> dict:
        return {"kept": self.draft.kept}


def distill(
    target: Decoder,
    texts: Sequence[Text],
    recipe: Recipe,
    folder: Path,
    minutes: float | None = None,
    *,
    fast: bool,
) -> DraftRun:
    """Train a draft, or continue the run in `folder`, until recipe.steps or for at most `minutes`.

    fast: matmuls in bf16; weights stay float32. Raises ValueError if the folder holds a run of another recipe.
    """

    def start(recipe: Recipe, saved: dict) -> DraftRun:
        return fresh(target, recipe, saved.get("kept", frequent(texts, target.config.vocab_size, recipe.kept)))

    run = resume(recipe, folder, start)
    lengths = [len(text.ids) for text in texts]
    train(run, lengths, lambda which: train_step(run, [texts[i] for i in which], fast), folder, minutes, "Distilling")
    return run


def train_step(run: DraftRun, texts: Sequence[Text], fast: bool) -> None:
    """One update from a batch of texts."""
    with torch.autocast(run.draft.embedding.weight.device.type, torch.bfloat16) if fast else nullcontext():
        theirs, ours = states(run.draft, texts, run.recipe, run.step)
    exact = torch.bfloat16 if fast else ours.dtype
    head = run.draft.head.weight
    loss, agree = DistillationLoss.apply(ours.to(exact), theirs.to(exact), head.to(exact), run.recipe.hard)
    run.draft.zero_grad()
    loss.backward()
    update(run, {"loss": round(loss.item(), 5), "agree": round(agree.float().mean().item(), 4)})


def states(draft: TrimmedDecoder, texts: Sequence[Text], recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """Inputs of the target's and of the draft's head, (T, D) each, at every position that counts."""
    counts = torch.cat([counted(text, recipe, step) for text in texts])
    ours = draft.final(read_texts(draft, [text.ids[:-1] for text in texts])[counts.to(draft.norm.device)])
    return torch.cat([text.hidden for text in texts])[counts].to(ours.device), ours


def counted(text: Text, recipe: Recipe, step: int) -> Tensor:
    """Mask (T - 1,) bool of the positions that count: the whole answer, and one prompt token in recipe.prompt."""
    counts = torch.ones(len(text.ids) - 1, dtype=torch.bool)
    prompt = counts[: text.prompt_length - 1]
    prompt[:] = (torch.arange(len(prompt)) + step) % recipe.prompt == 0
    prompt[: recipe.skip] = False
    return counts


def fresh(target: Decoder, recipe: Recipe, kept: Tensor) -> DraftRun:
    """A new run. kept (K,): vocabulary of the trimmed head."""
    draft = start_from(target, recipe.layers, kept)
    weights = own_weights(draft)
    return DraftRun(recipe=recipe, draft=draft, weights=weights, optimizers=optimizers(weights.values(), recipe))


def trained(target: Decoder, folder: Path) -> DraftRun:
    """The run stored in `folder`. Raises ValueError if there is none."""
    return stored(Recipe, folder, lambda recipe, saved: fresh(target, recipe, saved["kept"]))


# --- The loss


class DistillationLoss(torch.autograd.Function):
    """apply(ours, theirs, head, hard) -> (loss, agree).

    ours, theirs (T, D): inputs of the head, from draft and target; head (K, D), frozen.
    loss: mean over positions of (1 - hard) KL(p, q) + hard (-log q of p's argmax), in nats. KL is the distillation
    loss; greedy acceptance needs only the argmax.
    agree (T,) bool: whether both have the same argmax. Only `ours` gets gradients.

    The gradient with respect to the draft's logits has a closed form, q - wanted. So loss and gradient are computed in
    one pass over a few positions at a time, and the 16,384 logits of 2,000 positions are never in memory at once.
    """

    @staticmethod
    def forward(ctx, ours: Tensor, theirs: Tensor, head: Tensor, hard: float):
        rows = zip(ours.split(ROWS), theirs.split(ROWS), strict=True)
        losses, gradients, agree = zip(*(some_rows(*some, head, hard) for some in rows), strict=True)
        ctx.save_for_backward(torch.cat(gradients) / len(ours))
        return sum(losses) / len(ours), torch.cat(agree)

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        (gradient,) = ctx.saved_tensors
        return grad.to(gradient.dtype) * gradient, None, None, None


def some_rows(ours: Tensor, theirs: Tensor, head: Tensor, hard: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of a few positions: the sum of losses (), its gradient with respect to `ours` (T, D), agree (T,).

    ours, theirs (T, D), head (K, D), hard: as in DistillationLoss.
    """
    exact = torch.promote_types(ours.dtype, torch.float32)
    log_p, log_q = (F.linear(states, head).to(exact).log_softmax(-1) for states in (theirs, ours))
    # the hard part: agreement with the target's argmax
    best = log_p.argmax(-1, keepdim=True)
    agree = best[:, 0] == log_q.argmax(-1)
    # loss; in place, since each of these has one number per position and token
    wanted = log_p.exp().mul_(1 - hard)
    divergence = (wanted * log_p.sub_(log_q)).sum(-1)
    loss = (divergence - hard * log_q.gather(-1, best)[:, 0]).sum()
    # gradient: q - wanted
    wanted.scatter_add_(-1, best, torch.full_like(best, hard, dtype=exact))
    return loss, log_q.exp_().sub_(wanted).to(head.dtype) @ head, agree
