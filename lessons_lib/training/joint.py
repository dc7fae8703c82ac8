"""Training a model together with its Medusa heads (lesson 09): Medusa-2 of Cai et al. 2024 (arXiv 2401.10774).

Heads guess better where the model makes its states easier to read; but then its own text changes, and what greedy
acceptance keeps is the text of the new model. Its distribution is held to the old one's on the old one's own texts
(self-distillation), whose states were kept: with them, the old model need not run beside the new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.models.decoder import Decoder
from lessons_lib.models.lora import LowRank, adapted
from lessons_lib.models.medusa import MedusaHeads
from lessons_lib.training.batched import Text
from lessons_lib.training.checkpoint import keep, resume
from lessons_lib.training.distill import read
from lessons_lib.training.heads_loss import backward, batch, judge, total
from lessons_lib.training.loop import TrainingRun, go_on, schedule, set_rate, update
from lessons_lib.training.loss import DistillationLoss

LOOK_EVERY = 20  # steps between two looks at the texts that train nothing


@dataclass(frozen=True)
class JointRecipe:
    """start: the run of heads that it begins with. rank, alpha: of the adapters. balance: lambda_0, the weight of the
    heads' losses. decay: lambda, as HeadsRecipe. rate: the adapters'; the heads learn `faster` times as fast. tokens:
    per step."""

    start: str = "default"
    rank: int = 8
    alpha: float = 16.0
    balance: float = 0.2
    decay: float = 0.8
    steps: int = 200
    tokens: int = 1_024
    rate: float = 5e-4
    faster: float = 4.0
    warmup: int = 20
    seed: int = 0


@dataclass(kw_only=True)
class JointRun(TrainingRun):
    """The training run of adapters and heads with one optimizer; its curve has both parts of the loss.

    The first row and each LOOK_EVERY-th after it have those of texts that train nothing as they were before the step,
    and how often the heads' favourites were right there (top1); the last row as they are in the end.
    """

    adapters: LowRank
    heads: MedusaHeads


def train_joint(
    decoder: Decoder,
    heads: MedusaHeads,
    texts: Sequence[Text],
    recipe: JointRecipe,
    folder: Path,
    minutes: float | None = None,
    held: Sequence[Text] = (),
) -> JointRun:
    """Train adapters of a frozen decoder (float32 or float64) and its heads, which should be trained alone first.

    The heads change in place. held: texts that train nothing, to look at. Resumable as `train_heads`; ValueError if the
    checkpoint's recipe is another one.
    """
    run = resume(recipe, folder, lambda _: fresh(decoder, heads, recipe), weights)
    order = schedule([len(text.ids) for text in texts], recipe)

    def one_step(indices: list[int]) -> None:
        seen = look(run, decoder, held) if run.step % LOOK_EVERY == 0 else {}
        joint_step(run, decoder, [texts[i] for i in indices])
        run.curve[-1] |= look(run, decoder, held) if run.step == recipe.steps else seen

    go_on(run, order, one_step, lambda: keep(run, weights(run), folder), minutes, "Training jointly")
    return run


def joint_step(run: JointRun, decoder: Decoder, texts: Sequence[Text]) -> None:
    """One update from a batch of texts: L = KL(old, new) + balance * sum of decay^k L_k, both parts recorded."""
    recipe = run.recipe
    set_rate(run)
    run.optimizers[0].zero_grad()
    theirs, chosen, labels = batch(texts, run.heads.count)
    ours = states(run, decoder, texts)
    cut = ours.detach().requires_grad_()  # the losses' gradients gather here, then run through the decoder once
    divergence, _ = DistillationLoss.apply(cut, theirs.to(cut), decoder.head.weight, 0.0)
    divergence.backward()
    guessing = total(backward(run.heads, cut, chosen, labels, recipe.decay, recipe.balance), recipe.decay)
    ours.backward(cut.grad)
    parts = {"loss": divergence.item() + recipe.balance * guessing, "kl": divergence.item(), "heads": guessing}
    update(run, weights(run).values(), {name: round(value, 5) for name, value in parts.items()})


@torch.no_grad()
def look(run: JointRun, decoder: Decoder, held: Sequence[Text]) -> dict:
    """What the curve says of texts that train nothing (KL, loss in nats; shares of right guesses); {} without any."""
    if not held:
        return {}
    now = [replace(text, hidden=final(run, decoder, [text])) for text in held]
    theirs, ours = (torch.cat([text.hidden[text.prompt_length - 1 :] for text in of]) for of in (held, now))
    divergence, _ = DistillationLoss.apply(ours, theirs.to(ours), decoder.head.weight, 0.0)
    found = judge(run.heads, now, top_k=1)
    guessing = total(torch.tensor(found["loss"]), run.recipe.decay)
    top1 = [round(row[0], 4) for row in found["accuracies"]]
    return {"held_kl": round(divergence.item(), 5), "held_heads": round(guessing, 5), "top1": top1}


def final(run: JointRun, decoder: Decoder, texts: Sequence[Text]) -> Tensor:
    """What the adapted model's head reads (T, D) along all texts, packed."""
    return decoder.final(read(decoder, [text.ids[:-1] for text in texts], kernels=run.adapters.kernels()))


def states(run: JointRun, decoder: Decoder, texts: Sequence[Text]) -> Tensor:
    """What the adapted model's head reads (T, D), from every prompt's last token on: the rows of `heads_loss.batch`."""
    counts = torch.cat([torch.arange(len(text.ids) - 1) >= text.prompt_length - 1 for text in texts])
    return final(run, decoder, texts)[counts.to(decoder.norm.device)]


def weights(run: JointRun) -> dict[str, Tensor]:
    """What is trained, by name."""
    return {f"{part}.{name}": weight for part in ("adapters", "heads")
            for name, weight in getattr(run, part).named_parameters()}  # fmt: skip


def fresh(decoder: Decoder, heads: MedusaHeads, recipe: JointRecipe) -> JointRun:
    """A run at its start."""
    adapters = adapted(decoder, recipe.rank, recipe.alpha, recipe.seed)
    groups = [
        {"params": list(adapters.parameters())},
        {"params": list(heads.requires_grad_(True).parameters()), "faster": recipe.faster},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, weight_decay=0.0)
    return JointRun(recipe=recipe, adapters=adapters, heads=heads, optimizers=[optimizer])
