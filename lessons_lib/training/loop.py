"""What all training runs share (lessons 06, 09): how far they are, and a loop that saves and heeds the clock."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lessons_lib.progress import bar

SAVE_EVERY = 100  # steps


@dataclass(kw_only=True)
class TrainingRun:
    """A training run: its recipe, the optimizers, the steps and seconds so far, and a row of the curve for each step.

    A row has the step and its losses, in nats; what is trained, each kind of run adds. device: the name of what it
    computed on last, "" where nobody says.
    """

    recipe: Any
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0
    device: str = ""
    curve: list[dict] = field(default_factory=list)


def go_on(
    run: TrainingRun,
    order: Iterator[list[int]],
    one_step: Callable,
    keep: Callable[[], None],
    minutes: float | None,
    desc: str,
) -> None:
    """Take the steps that `run` still lacks, for some minutes at most: one_step(text numbers) takes one.

    order: batches of text numbers from the run's first step on, whatever was taken already. keep: writes the
    checkpoint. one_step records the loss in the curve.
    """
    until = monotonic() + 60 * (minutes or math.inf)
    with bar(total=run.recipe.steps, desc=desc, unit="step") as shown:
        shown.update(run.step)
        for indices in islice(order, run.step, run.recipe.steps):
            since = monotonic()
            one_step(indices)
            run.seconds += monotonic() - since
            shown.update(1)
            shown.set_postfix(said(run.curve[-1]))
            stop = monotonic() > until
            if stop or run.step % SAVE_EVERY == 0 or run.step == run.recipe.steps:
                keep()
            if stop:
                break


def said(row: dict) -> dict[str, str]:
    """A row of the curve beside the bar: its plain numbers."""
    return {name: f"{value:.3f}" for name, value in row.items() if isinstance(value, float)}


def set_rate(run: TrainingRun) -> None:
    """All optimizers go on at the step's share of the recipe's rate, a group that is `faster` at so much more."""
    share = pace(run.step, run.recipe)
    for group in [group for optimizer in run.optimizers for group in optimizer.param_groups]:
        group["lr"] = run.recipe.rate * share * group.get("faster", 1.0)


def update(run: TrainingRun, weights: Iterable[Tensor], row: dict[str, float]) -> None:
    """One update from gradients that are there, clipped to a norm of 1; the step, and its row, go to the curve."""
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    run.step += 1
    run.curve.append({"step": run.step} | row)


def optimizers(weights: Iterable[Tensor], recipe) -> list[torch.optim.Optimizer]:
    """AdamW, or for the matrices Muon, whose orthogonal updates (Jordan et al. 2024) learn more from a text."""
    matrices, vectors = [], []
    for weight in weights:
        (matrices if recipe.muon and weight.ndim == 2 else vectors).append(weight)
    adamw = torch.optim.AdamW(vectors, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
    if not recipe.muon:
        return [adamw]
    return [adamw, torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")]


def schedule(lengths: Sequence[int], recipe) -> Iterator[list[int]]:
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


def pace(step: int, recipe) -> float:
    """The learning rate's share at a step: up in a line, down along a cosine."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return 0.5 + 0.5 * math.cos(math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
