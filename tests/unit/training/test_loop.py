"""The training loop: each epoch reads each text once, packed texts do not mix, and the rate rises and falls."""

import pytest
import torch

from lessons_lib.training import loop
from lessons_lib.training.distill import Recipe, distill, trained


def test_every_epoch_reads_every_text_once():
    order = loop.schedule([10] * 12, Recipe(tokens=30, seed=3))
    first, second = ([index for _ in range(4) for index in next(order)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12)) and first != second


def test_without_texts_there_is_no_batch_to_wait_for():
    with pytest.raises(ValueError, match="no texts to train on"):
        next(loop.schedule([], Recipe()))


def test_a_text_in_a_pack_is_read_as_if_alone(target):
    together = loop.read_texts(target, [[5, 80, 3], [7, 9], [1]])
    alone = torch.cat([loop.read_texts(target, [ids]) for ids in ([5, 80, 3], [7, 9], [1])])
    assert torch.allclose(together, alone, atol=1e-12)


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine():
    recipe = Recipe(warmup=4, steps=12)
    paces = [loop.pace(step, recipe) for step in range(13)]
    assert paces[:5] == [0.25, 0.5, 0.75, 1, 1] and paces[8] == pytest.approx(0.5) and paces[12] == pytest.approx(0)


def test_a_run_that_is_interrupted_goes_on_from_its_last_checkpoint(target, texts, tmp_path, monkeypatch):
    recipe = Recipe(layers=(1,), kept=40, steps=4, tokens=50, warmup=1, skip=1)
    whole = distill(target, texts, recipe, tmp_path / "whole", fast=False)
    monkeypatch.setattr(loop, "SAVE_EVERY", 0)
    taken = []

    def interrupted(run, row, update=loop.update):
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(row)
        update(run, row)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("lessons_lib.training.distill.update", interrupted)
        distill(target, texts, recipe, tmp_path / "cut", fast=False)
    assert trained(target, tmp_path / "cut").step == 2
    again = distill(target, texts, recipe, tmp_path / "cut", fast=False)
    assert again.curve == whole.curve
    assert all(torch.equal(again.weights[name], weight) for name, weight in whole.weights.items())
