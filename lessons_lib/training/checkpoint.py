"""Training runs as they are kept (lessons 06, 09): a folder with a checkpoint, to go on from, and the loss curve."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.paths import cache_dir
from lessons_lib.training.loop import TrainingRun

CHECKPOINT, CURVE = "checkpoint.pt", "curve.json"


def runs(of: str, name: str, kind: str = "run") -> Path:
    """The folder of a run's checkpoint and curve; of: the draft, or the heads, that it trains."""
    return cache_dir() / "training" / of / f"{kind}-{name}"


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


def read_checkpoint(folder: Path, command: str = "") -> dict:
    """What `keep` wrote. ValueError if there is nothing; command: the part of the recipe that would write it."""
    if not (folder / CHECKPOINT).is_file():
        raise ValueError(f"{folder} holds no checkpoint; run `python -m lessons_lib.training {command}` first")
    return torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)


@torch.no_grad()
def restored(run: TrainingRun, weights: Callable, saved: dict) -> TrainingRun:
    """The run with a checkpoint's weights, optimizer and counters. KeyError for a weight that the checkpoint lacks."""
    for name, weight in weights(run).items():
        weight.copy_(saved["weights"][name])
    for optimizer, state in zip(run.optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    run.step, run.seconds, run.curve = saved["step"], saved["seconds"], saved["curve"]
    run.device = saved.get("device", "")
    return run


def keep(run: TrainingRun, weights: Mapping[str, Tensor], folder: Path, **more) -> None:
    """The checkpoint of any run, whole or not at all, and the loss curve."""
    folder.mkdir(parents=True, exist_ok=True)
    state = more | {
        "recipe": asdict(run.recipe),
        "weights": {name: weight.detach() for name, weight in weights.items()},
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "step": run.step,
        "seconds": run.seconds,
        "device": run.device,
        "curve": run.curve,
    }
    part = folder / f"{CHECKPOINT}.part"
    torch.save(state, part)
    part.replace(folder / CHECKPOINT)
    (folder / CURVE).write_text(json.dumps(run.curve))
