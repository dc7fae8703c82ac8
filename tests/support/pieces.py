"""Training runs in pieces of one step, which shall end as a run in one go."""

from collections.abc import Callable
from pathlib import Path

import torch


def assert_pieces_end_alike(train: Callable, folder: Path, steps: int):
    """train(folder, **options): a run of `steps` steps -> the run in one go."""
    whole = train(folder / "whole")
    for step in range(1, steps + 1):
        parts = train(folder / "parts", minutes=1e-9)
        assert parts.step == step
    assert parts.curve == whole.curve
    for name, weight in whole.weights.items():
        assert torch.equal(weight, parts.weights[name])
    return whole
