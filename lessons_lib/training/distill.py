"""Distilling: a small draft learns the target's distribution on the target's own text (lesson 06).

Hinton et al. 2015 (arXiv 1503.02531); on the target's own text: Zhou et al. 2023 (DistillSpec, arXiv 2310.08461).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.measure.machine import device_name
from lessons_lib.models.calibrate import Uncached
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.draft import TrimmedDecoder, own_weights, start_from
from lessons_lib.training.batched import Text
from lessons_lib.training.checkpoint import keep, read_checkpoint, restored, resume
from lessons_lib.training.collect import frequent
from lessons_lib.training.loop import TrainingRun, go_on, optimizers, schedule, set_rate, update
from lessons_lib.training.loss import DistillationLoss


@dataclass(frozen=True)
class Recipe:
    """layers: numbers of the target's layers to start from. kept: tokens the head scores. tokens: per step.

    muon: 1 or 0, whether matrices are trained by Muon. hard: weight of the cross-entropy, the rest is KL's.
    prompt: every so manieth token of a prompt counts, others from step to step (0: none). skip: first tokens of
    every text, the template's, that teach nothing. mlp: neurons of every MLP (0: all). only: "greedy" or
    "drawn" texts ("": both).
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
    mlp: int = 0
    only: str = ""


@dataclass(kw_only=True)
class DraftRun(TrainingRun):
    """A draft's training run. A row of its curve: the loss, and how often draft and target have one favourite."""

    draft: TrimmedDecoder


def distill(
    target: Decoder,
    texts: Sequence[Text],
    recipe: Recipe,
    folder: Path,
    minutes: float | None = None,
    *,
    fast: bool,
) -> DraftRun:
    """Train, or go on training where `folder` holds a checkpoint, until recipe.steps or for some minutes.

    Leaves a checkpoint and the loss curve in `folder`. fast: products in bf16, weights in float32 all the same.
    Interrupted and resumed, it ends with the same weights as in one go. ValueError if the checkpoint's recipe
    is another one, and for layers or neurons that the target lacks.
    """

    def begin(saved: dict) -> DraftRun:
        return fresh(target, recipe, saved.get("kept", frequent(texts, target.config.vocab_size, recipe.kept)))

    run = resume(recipe, folder, begin, weights)
    run.device = device_name(target.embedding.weight.device)
    order = schedule([len(text.ids) for text in texts], recipe)
    one_step = lambda indices: train_step(run, [texts[i] for i in indices], fast)  # noqa: E731
    go_on(run, order, one_step, lambda: keep(run, weights(run), folder, kept=run.draft.kept), minutes, "Distilling")
    return run


def train_step(run: DraftRun, texts: Sequence[Text], fast: bool) -> None:
    """One update from a batch of texts; loss (nats) and the share of likeliest tokens that agree go to the curve."""
    set_rate(run)
    with torch.autocast(run.draft.embedding.weight.device.type, torch.bfloat16) if fast else nullcontext():
        theirs, ours = states(run.draft, texts, run.recipe, run.step)
    read = (ours, theirs, run.draft.head.weight)
    ours, theirs, head = (tensor.to(torch.bfloat16 if fast else ours.dtype) for tensor in read)
    loss, agree = DistillationLoss.apply(ours, theirs, head, run.recipe.hard)
    run.draft.zero_grad()
    loss.backward()
    right = agree.float().mean().item()
    update(run, own_weights(run.draft).values(), {"loss": round(loss.item(), 5), "agree": round(right, 4)})


def states(draft: TrimmedDecoder, texts: Sequence[Text], recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """What the target's head read and what the draft's reads (T, D) at every position that counts."""
    counts = torch.cat([counted(text, recipe, step) for text in texts])
    ours = draft.final(read(draft, [text.ids[:-1] for text in texts])[counts.to(draft.norm.device)])
    return torch.cat([text.hidden for text in texts])[counts].to(ours.device), ours


def read(draft: Decoder, texts: Sequence[Sequence[int]], **options) -> Tensor:
    """The draft's states (T, D) after its last layer over all texts, packed; options as of its forward."""
    at = draft.embedding.weight.device
    segments = [Segment(torch.arange(len(ids), device=at), Uncached()) for ids in texts]
    return draft(torch.tensor([token for ids in texts for token in ids], device=at), segments, **options).last


def counted(text: Text, recipe: Recipe, step: int) -> Tensor:
    """(T - 1,) bool: whether the next token counts. The answer's all do, of the prompt's one in recipe.prompt."""
    counts = torch.ones(len(text.ids) - 1, dtype=torch.bool)
    prompt = counts[: text.prompt_length - 1]
    prompt[:] = (torch.arange(len(prompt)) + step) % recipe.prompt == 0 if recipe.prompt else False
    prompt[: recipe.skip] = False
    return counts


def weights(run: DraftRun) -> dict[str, Tensor]:
    """What distilling trains, by name."""
    return own_weights(run.draft)


def fresh(target: Decoder, recipe: Recipe, kept: Tensor) -> DraftRun:
    """A run at its start. kept (K,): ids that the head scores. ValueError for layers or neurons the target lacks."""
    draft = start_from(target, recipe.layers, kept, recipe.mlp)
    return DraftRun(recipe=recipe, draft=draft, optimizers=optimizers(own_weights(draft).values(), recipe))


def trained(target: Decoder, folder: Path) -> DraftRun:
    """The draft's run that `folder` holds. ValueError if it holds none."""
    saved = read_checkpoint(folder, "distill")
    return restored(fresh(target, Recipe(**saved["recipe"]), saved["kept"]), weights, saved)
