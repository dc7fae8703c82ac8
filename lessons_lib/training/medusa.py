"""Training Medusa heads (lesson 09) on a frozen model, as Medusa-1 of Cai et al. 2024 (arXiv 2401.10774).

The heads read the same hidden states as the model's own head, and these were stored with the texts
(`training.collect`). The model never runs, and a step is a few matmuls.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.decoding.proposers.medusa import MedusaHeads
from lessons_lib.training.collect import Text, frequent, number_of
from lessons_lib.training.loop import TrainingRun, optimizers, resume, stored, train, update
from lessons_lib.training.prompts import source

LOOK_EVERY = 200  # steps between two validations
HELD_BACK = 10  # one passage or topic in this many is for validation
ROWS = 256  # positions computed at a time: the logits of all heads at 2,000 positions would take gigabytes
RANKS = 10  # most likely tokens of a head among which a tree is chosen
MISSING = -100  # label after the end of a text


@dataclass(frozen=True)
class HeadsRecipe:
    """Hyperparameters. heads, blocks, root_rank: as in MedusaHeads.

    decay: lambda; the loss of head k is weighted by lambda^k. tokens: per step, prompts included. rate, warmup, muon:
    as in `distill.Recipe`. kept: vocabulary of the heads, the most frequent tokens of the texts (0: all).
    """

    heads: int = 4
    blocks: int = 1
    root_rank: int = 0
    decay: float = 0.8
    steps: int = 2_000
    tokens: int = 2_048
    rate: float = 1e-3
    warmup: int = 100
    muon: int = 0
    kept: int = 0
    seed: int = 0


@dataclass(kw_only=True)
class HeadsRun(TrainingRun):
    """Training run of heads.

    Every LOOK_EVERY-th row of its curve and the last one also hold the validation loss and each head's accuracy: its
    argmax (top1), or one of its five most likely tokens (top5).
    """

    heads: MedusaHeads

    def state(self) -> dict:
        return {"kept": self.heads.kept}


def train_heads(
    lm_head: Tensor, texts: Sequence[Text], recipe: HeadsRecipe, folder: Path, minutes: float | None = None
) -> HeadsRun:
    """Train heads, or continue the run in `folder`, until recipe.steps or for at most `minutes`.

    lm_head (V, D): the model's own, frozen. If it is bf16, matmuls are too, while the heads' weights stay float32.
    Raises ValueError if the folder holds a run of another recipe.
    """

    def start(recipe: HeadsRecipe, saved: dict) -> HeadsRun:
        most_used = frequent(texts, len(lm_head), recipe.kept) if recipe.kept else None
        return fresh(lm_head, recipe, saved.get("kept", most_used))

    run = resume(recipe, folder, start)
    training, held = split(texts)

    def one_step(which: list[int]) -> None:
        train_step(run, [training[i] for i in which])
        if run.step % LOOK_EVERY == 0 or run.step == recipe.steps:
            run.curve[-1] |= look(run, held)

    train(run, [len(text.ids) for text in training], one_step, folder, minutes, "Training heads")
    return run


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Split texts into (training, validation). The validation tenth monitors the heads and chooses their tree.

    The split is by passage or topic, so that none is in both parts, and does not depend on the number of texts.
    Held-out prompts are in neither.
    """
    parts = [], []
    for text in texts:
        parts[number_of(text.subject or source(text.key)) % HELD_BACK == 0].append(text)
    return parts


def train_step(run: HeadsRun, texts: Sequence[Text]) -> None:
    """One update from a batch of texts."""
    run.heads.zero_grad()
    losses = backward(run.heads, *batch(texts, run.heads.count), run.recipe.decay).tolist()
    update(run, {"loss": round(total(losses, run.recipe.decay), 5)})


def look(run: HeadsRun, held: Sequence[Text]) -> dict:
    """Validation loss (nats) and accuracies of the heads; {} without texts."""
    if not held:
        return {}
    found = judge(run.heads, held)
    top1, top5 = ([round(sum(row[:k]), 4) for row in found["accuracies"]] for k in (1, 5))
    return {"held_loss": round(total(found["loss"], run.recipe.decay), 5), "top1": top1, "top5": top5}


def fresh(lm_head: Tensor, recipe: HeadsRecipe, kept: Tensor | None = None) -> HeadsRun:
    """A new run. lm_head (V, D). kept (K,): vocabulary of the heads (None: all)."""
    heads = MedusaHeads(lm_head, recipe.heads, recipe.blocks, root_rank=recipe.root_rank)
    exact = torch.promote_types(lm_head.dtype, torch.float32)
    for part in (heads.stacks, heads.root_readers):
        part.to(exact)
    if kept is not None:
        heads.trim(kept)
    weights = dict(heads.named_parameters())
    return HeadsRun(recipe=recipe, heads=heads, weights=weights, optimizers=optimizers(weights.values(), recipe))


def trained(lm_head: Tensor, folder: Path) -> HeadsRun:
    """The run stored in `folder`. lm_head (V, D). Raises ValueError if there is none."""
    return stored(HeadsRecipe, folder, lambda recipe, saved: fresh(lm_head, recipe, saved["kept"]))


# --- The loss: cross-entropy of head k with the token k positions after the next one


def batch(texts: Sequence[Text], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `examples` of several texts for `count` heads, concatenated."""
    return tuple(map(torch.cat, zip(*(examples(text, count) for text in texts), strict=True)))


def examples(text: Text, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Training examples of a text: states (T, D) from the prompt's last token on, chosen tokens (T,), labels (T, K).

    State i chose token i + 1, so head k = 1, 2, ... predicts token i + 1 + k; MISSING after the end.
    """
    start = text.prompt_length - 1
    ids = torch.tensor(text.ids + [MISSING] * count)
    rows = torch.arange(start, len(text.ids) - 1)
    return text.hidden[start:], ids[rows + 1], ids[rows[:, None] + 2 + torch.arange(count)]


def backward(heads: MedusaHeads, states: Tensor, chosen: Tensor, labels: Tensor, decay: float) -> Tensor:
    """Add the gradients of the sum of decay^k L_k; returns each head's mean cross-entropy L_k (K,) in nats.

    states (T, D), chosen (T,), labels (T, K): from `examples`.
    """
    labels = scored(heads, labels)
    counts = (labels != MISSING).sum(0).clamp_min(1).to(heads.lm_head.device)
    # weight of each label in the loss
    share = decay ** torch.arange(1, heads.count + 1, device=counts.device) / counts
    sums = torch.zeros(heads.count, device=counts.device)
    for rows, known, wanted in zip(*(each.split(ROWS) for each in (states, chosen, labels)), strict=True):
        losses = surprise(scores_of(heads, rows, known), wanted).sum(0)
        (losses * share).sum().backward()
        sums += losses.detach()
    return sums / counts


def scored(heads: MedusaHeads, labels: Tensor) -> Tensor:
    """Map labels (...) to indices in the heads' vocabulary; MISSING for tokens that are not in it."""
    if heads.kept is None:
        return labels
    numbers = torch.full((heads.vocab_size,), MISSING)
    numbers[heads.kept.cpu()] = torch.arange(heads.scored)
    return numbers[labels.clamp_min(0)].where(labels != MISSING, MISSING)


def total(losses: Sequence[float], decay: float) -> float:
    """Weighted loss: the sum over heads k = 1, 2, ... of lambda^k L_k. decay: lambda."""
    return sum(decay**k * loss for k, loss in enumerate(losses, 1))


def scores_of(heads: MedusaHeads, states: Tensor, chosen: Tensor) -> Tensor:
    """states (T, D), chosen tokens (T,) -> the heads' logits (T, K, scored), matmuls in the LM head's dtype."""
    kind = heads.lm_head.dtype
    with torch.autocast(heads.lm_head.device.type, kind) if kind == torch.bfloat16 else nullcontext():
        return heads.scores(states.to(heads.lm_head), chosen=chosen)


def surprise(scores: Tensor, labels: Tensor) -> Tensor:
    """Logits (T, K, scored), labels (T, K) mapped by `scored` -> cross-entropy (T, K) in nats; 0 if MISSING."""
    exact = scores.flatten(0, 1).to(torch.promote_types(scores.dtype, torch.float32))
    labels = labels.to(scores.device)
    return F.cross_entropy(exact, labels.flatten(), ignore_index=MISSING, reduction="none").view(labels.shape)


@torch.no_grad()
def judge(heads: MedusaHeads, texts: Sequence[Text]) -> dict[str, list]:
    """Each head's mean cross-entropy (loss, K, in nats) and accuracies (K by RANKS) along texts.

    accuracies: how often the i-th most likely token is right, of the positions that have a token to predict. The loss
    covers only tokens in the heads' vocabulary.
    """
    ranks = min(RANKS, heads.scored)
    loss, right, counts, known = torch.zeros(heads.count), torch.zeros(heads.count, ranks), *torch.zeros(2, heads.count)
    for states, chosen, labels in (examples(text, heads.count) for text in texts):
        scores, wanted = scores_of(heads, states, chosen), scored(heads, labels)
        best = scores.topk(ranks).indices.cpu()
        loss += surprise(scores, wanted).sum(0).cpu()
        right += (best == wanted[..., None]).sum(0)
        counts += (labels != MISSING).sum(0)
        known += (wanted != MISSING).sum(0)
    shares = right / counts.clamp_min(1)[:, None]
    return {"loss": (loss / known.clamp_min(1)).tolist(), "accuracies": shares.tolist()}
