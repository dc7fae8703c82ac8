"""Distilling: a small draft learns the target's distribution on the target's own text (lesson 06).

Hinton et al. 2015 (arXiv 1503.02531); on the target's own text: Zhou et al. 2023 (DistillSpec, arXiv 2310.08461).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.models.calibrate import Uncached
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.draft import TrimmedDecoder, own_weights
from lessons_lib.training.batched import Text
from lessons_lib.training.loop import go_on, set_rate, update
from lessons_lib.training.loss import DistillationLoss
from lessons_lib.training.run import Recipe, Run, draft_weights, frequent, fresh, resume, save


def distill(
    target: Decoder,
    texts: Sequence[Text],
    recipe: Recipe,
    folder: Path,
    minutes: float | None = None,
    *,
    fast: bool,
) -> Run:
    """Train, or go on training where `folder` holds a checkpoint, until recipe.steps or for some minutes.

    Leaves a checkpoint and the loss curve in `folder`. fast: products in bf16, weights in float32 all the same.
    Interrupted and resumed, it ends with the same weights as in one go. ValueError if the checkpoint's recipe
    is another one, and for layers or neurons that the target lacks.
    """

    def begin(saved: dict) -> Run:
        return fresh(target, recipe, saved.get("kept", frequent(texts, target.config.vocab_size, recipe.kept)))

    run = resume(recipe, folder, begin, draft_weights)
    order = schedule([len(text.ids) for text in texts], recipe)
    one_step = lambda indices: train_step(run, [texts[i] for i in indices], fast)  # noqa: E731
    go_on(run, order, one_step, lambda: save(run, folder), minutes, "Distilling")
    return run


def train_step(run: Run, texts: Sequence[Text], fast: bool) -> None:
    """One update from a batch of texts; loss (nats) and the share of likeliest tokens that agree go to the curve."""
    set_rate(run, pace(run.step, run.recipe))
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


def schedule(lengths: Sequence[int], recipe: Recipe) -> Iterator[list[int]]:
    """Batches of text numbers without end: every epoch all texts in an order of its own, the seed's.

    lengths: of the texts (at least one), in tokens. A batch has recipe.tokens tokens or a few more.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    batch, size = [], 0
    for _ in count():
        for index in torch.randperm(len(lengths), generator=generator).tolist():
            batch.append(index)
            size += lengths[index]
            if size >= recipe.tokens:
                yield batch
                batch, size = [], 0


def pace(step: int, recipe: Recipe) -> float:
    """The learning rate's share at a step: up in a line, down along a cosine."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return 0.5 + 0.5 * math.cos(math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
