"""A training run as it is kept (lesson 06): its recipe, the draft, its optimizers, the curve, and their checkpoint."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import TrimmedDecoder, own_weights, start_from
from lessons_lib.paths import cache_dir
from lessons_lib.training.batched import Text
from lessons_lib.training.loop import TrainingRun

CHECKPOINT, CURVE = "checkpoint.pt", "curve.json"


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
class Run(TrainingRun):
    """A draft's training run. A row of its curve: the loss, and how often draft and target have one favourite."""

    draft: TrimmedDecoder


def runs(of: str, name: str, kind: str = "run") -> Path:
    """The folder of a run's checkpoint and curve; of: the draft, or the heads, that it trains."""
    return cache_dir() / "training" / of / f"{kind}-{name}"


def frequent(texts: Sequence[Text], vocab_size: int, kept: int) -> Tensor:
    """The tokens (kept,) that texts use most, prompts too, since answers quote them, ascending.

    Where texts know too few: those with the lowest ids, which the tokenizer merged first because they are frequent.
    """
    tokens = torch.tensor([token for text in texts for token in text.ids])
    order = torch.bincount(tokens, minlength=vocab_size).argsort(descending=True, stable=True)
    return order[:kept].sort().values


def resume(recipe, folder: Path, begin: Callable, weights: Callable) -> TrainingRun:
    """The run that `folder` holds, or one at its start. ValueError if it holds one of another recipe.

    begin: what a checkpoint says ({} without one) -> a run at its start. weights: run -> what it trains, by name.
    """
    if not (folder / CHECKPOINT).is_file():
        return begin({})
    saved = read_checkpoint(folder)
    if (kept := type(recipe)(**saved["recipe"])) != recipe:
        raise ValueError(f"{folder} holds a run of another recipe, {kept}; remove it, or choose another folder")
    return restored(begin(saved), weights, saved)


def trained(target: Decoder, folder: Path) -> Run:
    """The draft's run that `folder` holds. ValueError if it holds none."""
    saved = read_checkpoint(folder, "distill")
    return restored(fresh(target, Recipe(**saved["recipe"]), saved["kept"]), draft_weights, saved)


def draft_weights(run: Run) -> dict[str, Tensor]:
    """What distilling trains, by name."""
    return own_weights(run.draft)


def read_checkpoint(folder: Path, command: str = "") -> dict:
    """What `keep` wrote. ValueError if there is nothing; command: the part of the recipe that would write it."""
    if not (folder / CHECKPOINT).is_file():
        raise ValueError(f"{folder} holds no checkpoint; run `python -m lessons_lib.training {command}` first")
    return torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)


def fresh(target: Decoder, recipe: Recipe, kept: Tensor) -> Run:
    """A run at its start. kept (K,): ids that the head scores. ValueError for layers or neurons the target lacks."""
    draft = start_from(target, recipe.layers, kept, recipe.mlp)
    return Run(recipe=recipe, draft=draft, optimizers=optimizers(own_weights(draft).values(), recipe))


def optimizers(weights: Iterable[Tensor], recipe) -> list[torch.optim.Optimizer]:
    """AdamW, or for the matrices Muon, whose orthogonal updates (Jordan et al. 2024) learn more from a text."""
    matrices, vectors = [], []
    for weight in weights:
        (matrices if recipe.muon and weight.ndim == 2 else vectors).append(weight)
    adamw = torch.optim.AdamW(vectors, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
    if not recipe.muon:
        return [adamw]
    return [adamw, torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")]


@torch.no_grad()
def restored(run: TrainingRun, weights: Callable, saved: dict) -> TrainingRun:
    """The run with a checkpoint's weights, optimizer and counters. KeyError for a weight that the checkpoint lacks."""
    for name, weight in weights(run).items():
        weight.copy_(saved["weights"][name])
    for optimizer, state in zip(run.optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    run.step, run.seconds, run.curve = saved["step"], saved["seconds"], saved["curve"]
    return run


def save(run: Run, folder: Path) -> None:
    """Keep a draft's run in `folder`."""
    keep(run, draft_weights(run), folder, kept=run.draft.kept)


def keep(run: TrainingRun, weights: Mapping[str, Tensor], folder: Path, **more) -> None:
    """The checkpoint of any run, whole or not at all, and the loss curve."""
    folder.mkdir(parents=True, exist_ok=True)
    state = more | {
        "recipe": asdict(run.recipe),
        "weights": {name: weight.detach() for name, weight in weights.items()},
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "step": run.step,
        "seconds": run.seconds,
        "curve": run.curve,
    }
    part = folder / f"{CHECKPOINT}.part"
    torch.save(state, part)
    part.replace(folder / CHECKPOINT)
    (folder / CURVE).write_text(json.dumps(run.curve))
