"""Training Medusa heads on a frozen model (lesson 09): Medusa-1 of Cai et al. 2024 (arXiv 2401.10774).

The heads read what the model's own head read, and these states were kept when the model wrote its texts
(`training.collect`): the model never runs, and a step is a few products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.models.medusa import MedusaHeads
from lessons_lib.training.batched import Text, number_of
from lessons_lib.training.checkpoint import keep, read_checkpoint, restored, resume
from lessons_lib.training.collect import frequent
from lessons_lib.training.heads_loss import backward, batch, judge, total
from lessons_lib.training.loop import TrainingRun, go_on, optimizers, schedule, set_rate, update
from lessons_lib.training.prompts import source

LOOK_EVERY = 200  # steps between two looks at the texts that train nothing
HELD_BACK = 10  # one passage or topic in so many


@dataclass(frozen=True)
class HeadsRecipe:
    """heads, blocks, anchor_rank: as MedusaHeads. decay: lambda, head k's loss counts lambda^k. tokens: per step,
    prompts included.

    own: 1 or 0, whether each head has its own LM head. muon: 1 or 0, whether matrices are trained by Muon. kept: how
    many tokens heads score, those that texts use most (0: all); scoring is nearly all that a step costs.
    """

    heads: int = 4
    blocks: int = 1
    own: int = 0
    anchor_rank: int = 0
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
    """The heads' training run.

    Each LOOK_EVERY-th row of its curve and the last have the held-back texts' loss and, for each head, how often its
    favourite (top1) or one of five (top5) was right there.
    """

    heads: MedusaHeads


def train_heads(
    lm_head: Tensor, texts: Sequence[Text], recipe: HeadsRecipe, folder: Path, minutes: float | None = None
) -> HeadsRun:
    """Train, or go on training where `folder` holds a checkpoint, until recipe.steps or for some minutes.

    lm_head (V, D): the model's own, frozen; where it is bf16, products are, too, while the heads' weights stay
    float32. Leaves a checkpoint and the curve in `folder`; interrupted and resumed, it ends with the same weights as
    in one go. ValueError if the checkpoint's recipe is another one, for a recipe without heads or blocks, and for one
    that trims heads with LM heads of their own.
    """

    def begin(saved: dict) -> HeadsRun:
        most_used = frequent(texts, len(lm_head), recipe.kept) if recipe.kept else None
        return fresh(lm_head, recipe, saved.get("kept", most_used))

    run = resume(recipe, folder, begin, weights)
    learnt, held = split(texts)

    def one_step(indices: list[int]) -> None:
        train_step(run, [learnt[i] for i in indices])
        if run.step % LOOK_EVERY == 0 or run.step == recipe.steps:
            run.curve[-1] |= look(run, held)

    order = schedule([len(text.ids) for text in learnt], recipe)
    save = lambda: keep(run, weights(run), folder, kept=run.heads.kept)  # noqa: E731
    go_on(run, order, one_step, save, minutes, "Training heads")
    return run


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Texts to train on, and the tenth that is held back to watch the heads and to choose their tree by.

    By what they are about, so that no passage and no topic is in both, and that it is the same tenth however many
    texts there are. Held-out prompts are in neither.
    """
    parts = [], []
    for text in texts:
        parts[held_back(text.key)].append(text)
    return parts


def held_back(key: str) -> bool:
    """Whether a text trains nothing."""
    return number_of(source(key)) % HELD_BACK == 0


def train_step(run: HeadsRun, texts: Sequence[Text]) -> None:
    """One update from a batch of texts: its loss, in nats with heads weighted, goes to the curve."""
    set_rate(run)
    run.heads.zero_grad()
    losses = backward(run.heads, *batch(texts, run.heads.count), run.recipe.decay)
    update(run, run.heads.parameters(), {"loss": round(total(losses, run.recipe.decay), 5)})


def look(run: HeadsRun, held: Sequence[Text]) -> dict:
    """What the curve says of texts that train nothing (loss in nats, shares of right guesses); {} without any."""
    if not held:
        return {}
    found = judge(run.heads, held)
    top = lambda k: [round(sum(row[:k]), 4) for row in found["accuracies"]]  # noqa: E731
    loss = total(torch.tensor(found["loss"]), run.recipe.decay)
    return {"held_loss": round(loss, 5), "top1": top(1), "top5": top(5)}


def weights(run: HeadsRun) -> dict[str, torch.nn.Parameter]:
    """What is trained, by name."""
    return dict(run.heads.named_parameters())


def fresh(lm_head: Tensor, recipe: HeadsRecipe, kept: Tensor | None = None) -> HeadsRun:
    """A run at its start. lm_head (V, D). kept (K,): ids that the heads score (None: all). Errors as `train_heads`."""
    heads = MedusaHeads(lm_head, recipe.heads, recipe.blocks, bool(recipe.own), recipe.anchor_rank)
    exact = torch.promote_types(lm_head.dtype, torch.float32)
    for part in (heads.stacks, heads.anchors, heads.own):
        part.to(exact)
    if kept is not None:
        heads.trim(kept)
    return HeadsRun(recipe=recipe, heads=heads, optimizers=optimizers(heads.parameters(), recipe))


def trained(lm_head: Tensor, folder: Path) -> HeadsRun:
    """The run that `folder` holds. lm_head (V, D). ValueError if it holds none."""
    saved = read_checkpoint(folder, "heads")
    return restored(fresh(lm_head, HeadsRecipe(**saved["recipe"]), saved["kept"]), weights, saved)
