"""The training loop: each epoch reads each text once, packed texts do not mix, and the rate rises and falls."""

import pytest
import torch

from lessons_lib.training import loop
from lessons_lib.training.distill import Recipe


def test_every_epoch_reads_every_text_once():
    order = loop.schedule([10] * 12, Recipe(tokens=30, seed=3))
    first, second = ([index for _ in range(4) for index in next(order)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12)) and first != second


def test_a_text_in_a_pack_is_read_as_if_alone(target):
    together = loop.read_texts(target, [[5, 80, 3], [7, 9], [1]])
    alone = torch.cat([loop.read_texts(target, [ids]) for ids in ([5, 80, 3], [7, 9], [1])])
    assert torch.allclose(together, alone, atol=1e-12)


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine():
    recipe = Recipe(warmup=4, steps=12)
    paces = [loop.pace(step, recipe) for step in range(13)]
    assert paces[:5] == [0.25, 0.5, 0.75, 1, 1] and paces[8] == pytest.approx(0.5) and paces[12] == pytest.approx(0)
