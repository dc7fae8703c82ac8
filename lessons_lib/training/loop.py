"""The training loop shared by all runs (lessons 06, 09): learning rate, batches of texts, checkpoints.

A run can be stopped at any time. It goes on from its last checkpoint, a minute old at most, and ends with exactly the
weights of an uninterrupted run.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lessons_lib.models.decoder import Decoder, NoCache, Segment
from lessons_lib.paths import cache_dir
from lessons_lib.progress import bar

SAVE_EVERY = 60  # seconds between two checkpoints
CHECKPOINT = "checkpoint.pt"


@dataclass(kw_only=True)
class TrainingRun:
    """State of a training run: recipe, trained weights by name, optimizers, steps and seconds so far, and a curve with
    a row per step (nats).

    Each kind of run adds the model that it trains, and may override `state`.
    """

    recipe: Any
    weights: dict[str, Tensor]
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0
    curve: list[dict] = field(default_factory=list)

    def state(self) -> dict:
        """What a checkpoint holds beside weights, optimizers and counters."""
        return {}


def train(
    run: TrainingRun, lengths: Sequence[int], one_step: Callable, folder: Path, minutes: float | None, desc: str
) -> None:
    """Take the remaining steps, for at most `minutes`, and write checkpoints to `folder`.

    lengths: of the texts, in tokens. one_step(indices of texts) takes one step and adds a row to the curve.
    """
    saved, until = monotonic(), monotonic() + 60 * (minutes or math.inf)
    with bar(total=run.recipe.steps, desc=desc, unit="step") as shown:
        shown.update(run.step)
        for indices in islice(schedule(lengths, run.recipe), run.step, run.recipe.steps):
            since = monotonic()
            one_step(indices)
            run.seconds += monotonic() - since
            shown.update(1)
            shown.set_postfix({name: f"{x:.3f}" for name, x in run.curve[-1].items() if isinstance(x, float)})
            stop = monotonic() > until or run.step == run.recipe.steps
            if stop or monotonic() > saved + SAVE_EVERY:
                save(run, folder)
                saved = monotonic()
            if stop:
                break


def schedule(lengths: Sequence[int], recipe) -> Iterator[list[int]]:
    """Endless batches of text indices: every epoch has all texts, shuffled with the recipe's seed.

    lengths: of the texts, in tokens. A batch has recipe.tokens tokens or a few more. Raises ValueError without texts.
    """
    if not lengths:
        raise ValueError("there are no texts to train on (a tenth only validates); collect more")
    generator = torch.Generator().manual_seed(recipe.seed)
    batch, size = [], 0
    while True:
        for index in torch.randperm(len(lengths), generator=generator).tolist():
            batch.append(index)
            size += lengths[index]
            if size >= recipe.tokens:
                yield batch
                batch, size = [], 0


def pace(step: int, recipe) -> float:
    """Learning rate at a step as a share of recipe.rate: linear warm-up, then a cosine to 0."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return 0.5 + 0.5 * math.cos(math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))


def update(run: TrainingRun, row: dict[str, float]) -> None:
    """One optimizer step from accumulated gradients, clipped to norm 1; `row` is added to the curve."""
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = run.recipe.rate * pace(run.step, run.recipe)
    torch.nn.utils.clip_grad_norm_(run.weights.values(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    run.step += 1
    run.curve.append({"step": run.step} | row)


def optimizers(weights: Iterable[Tensor], recipe) -> list[torch.optim.Optimizer]:
    """AdamW, or with recipe.muon Muon for the matrices: its orthogonal updates (Jordan et al. 2024) learn faster."""
    matrices, vectors = [], []
    for weight in weights:
        (matrices if recipe.muon and weight.ndim == 2 else vectors).append(weight)
    adamw = torch.optim.AdamW(vectors, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
    if not recipe.muon:
        return [adamw]
    return [adamw, torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")]


def read_texts(decoder: Decoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """Hidden states (T, D) after the decoder's last layer on texts of token ids, packed into one forward pass."""
    at = decoder.embedding.weight.device
    segments = [Segment(torch.arange(len(ids), device=at), NoCache()) for ids in texts]
    return decoder(torch.tensor([token for ids in texts for token in ids], device=at), segments).last


# --- Checkpoints


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A file to write, which then becomes `path`: whoever interrupts the writing leaves no half of it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    yield part
    part.replace(path)


def folder_of(trained: str, name: str) -> Path:
    """Folder of a run's checkpoint. trained: the kind of weights, such as "smol-draft"."""
    return cache_dir() / "training" / trained / f"run-{name}"


def save(run: TrainingRun, folder: Path) -> None:
    """Write the checkpoint, atomically."""
    state = run.state() | {
        "recipe": asdict(run.recipe),
        "weights": {name: weight.detach() for name, weight in run.weights.items()},
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "step": run.step,
        "seconds": run.seconds,
        "curve": run.curve,
    }
    with written(folder / CHECKPOINT) as part:
        torch.save(state, part)


def resume(recipe, folder: Path, start: Callable[[Any, dict], TrainingRun]) -> TrainingRun:
    """The run stored in `folder`, or a new one. Raises ValueError if it holds one of another recipe.

    start(recipe, saved): builds a new run. saved: the checkpoint's contents ({} without one).
    """
    if not (folder / CHECKPOINT).is_file():
        return start(recipe, {})
    run = stored(type(recipe), folder, start)
    if run.recipe != recipe:
        raise ValueError(f"{folder} holds a run of another recipe, {run.recipe}; remove it, or choose another folder")
    return run


@torch.no_grad()
def stored(kind: type, folder: Path, start: Callable[[Any, dict], TrainingRun]) -> TrainingRun:
    """The run stored in `folder`. Raises ValueError if there is none. kind: of its recipe. start: as in `resume`."""
    if not (folder / CHECKPOINT).is_file():
        raise ValueError(f"{folder} holds no checkpoint; train this run with `python -m lessons_lib.training` first")
    saved = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)
    run = start(kind(**saved["recipe"]), saved)
    for name, weight in run.weights.items():
        weight.copy_(saved["weights"][name])
    for optimizer, state in zip(run.optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    run.step, run.seconds, run.curve = saved["step"], saved["seconds"], saved["curve"]
    return run
