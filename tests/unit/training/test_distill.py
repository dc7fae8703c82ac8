"""The loss by hand, what is trained and what is not, and a run in pieces that ends like a run in one go."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.pieces import assert_pieces_end_alike

from lessons_lib.models.draft import own_weights
from lessons_lib.training import collect, distill
from lessons_lib.training.collect import Text
from lessons_lib.training.distill import DistillationLoss, Recipe

RECIPE = Recipe(layers=(1,), kept=40, steps=6, tokens=50, warmup=2, skip=1)


def loss_of(p, q, hard):
    """The loss for probabilities p and q (T, K): logarithms as states, read by a head that changes nothing."""
    p, q = (torch.tensor(rows, dtype=torch.float64).log() for rows in (p, q))
    return DistillationLoss.apply(q, p, torch.eye(q.shape[1], dtype=torch.float64), hard)[0]


def test_the_loss_is_the_divergence_mixed_with_the_argmaxs_surprise():
    divergence = 0.75 * math.log(0.75 / 0.4) + 0.25 * math.log(0.25 / 0.6)
    loss = lambda hard: loss_of([[0.75, 0.25]], [[0.4, 0.6]], hard).item()  # noqa: E731
    assert loss(0.0) == pytest.approx(divergence) and loss(1.0) == pytest.approx(-math.log(0.4))
    assert loss(0.3) == pytest.approx(0.7 * divergence - 0.3 * math.log(0.4))


@pytest.mark.parametrize("hard", [0.0, 0.3, 1.0])
def test_the_gradient_is_the_slope_of_the_loss_across_chunks(hard, monkeypatch):
    monkeypatch.setattr("lessons_lib.training.distill.ROWS", 2)
    random = torch.Generator().manual_seed(0)
    ours, theirs, head = (torch.randn(n, 4, dtype=torch.float64, generator=random) for n in (5, 5, 7))
    loss = lambda x: DistillationLoss.apply(x, theirs, head, hard)[0]  # noqa: E731
    assert torch.autograd.gradcheck(loss, ours.requires_grad_(True))


def test_it_says_where_both_like_the_same_token_best():
    theirs, ours = torch.eye(3), torch.eye(3)[[0, 2, 2]]
    assert DistillationLoss.apply(ours, theirs, torch.eye(3), 0.0)[1].tolist() == [True, False, True]


def test_every_answer_token_counts_some_of_the_prompts_and_none_of_the_templates():
    text = Text("k", [1, 10, 11, 12, 13, 20, 21], prompt_length=5)
    counted = [distill.counted(text, Recipe(skip=1, prompt=2), step).int().tolist() for step in (0, 1)]
    assert counted == [[0, 0, 1, 0, 1, 1], [0, 1, 0, 1, 1, 1]]  # row 4 chooses token 5, the answer's first


def test_training_brings_the_draft_nearer_to_its_target(target, texts, tmp_path):
    recipe = replace(RECIPE, steps=60, warmup=5, rate=3e-3)
    curve = distill.distill(target, texts, recipe, tmp_path, fast=False).curve
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"] and curve[-1]["step"] == 60


def test_only_what_the_draft_owns_is_trained(target, texts, tmp_path):
    before = distill.fresh(target, RECIPE, collect.frequent(texts, 97, 40)).draft
    after = distill.distill(target, texts, RECIPE, tmp_path, fast=False).draft
    assert torch.equal(after.embedding.weight, target.embedding.weight)
    assert torch.equal(after.head.weight, target.head.weight[after.kept])
    trained, started = own_weights(after), own_weights(before)
    assert len(trained) == 7 and not any(torch.equal(trained[name], started[name]) for name in trained)


@pytest.mark.parametrize("fast", [False, True])
def test_a_run_in_pieces_ends_with_the_very_weights_of_a_run_in_one_go(target, texts, tmp_path, fast):
    train = partial(distill.distill, target, texts, RECIPE, fast=fast)
    assert_pieces_end_alike(train, tmp_path, steps=6)


def test_every_part_of_the_recipe_matters(target, texts, tmp_path):
    losses = set()
    for number, change in enumerate(
        [{}, {"hard": 0.9}, {"prompt": 1}, {"skip": 3}, {"rate": 1e-5}, {"warmup": 5}, {"muon": 0}]
    ):
        after = distill.distill(target, texts, replace(RECIPE, **change), tmp_path / str(number), fast=False)
        losses.add(after.curve[-1]["loss"])
    assert len(losses) == 7


def test_a_run_of_another_recipe_is_refused(target, texts, tmp_path):
    distill.distill(target, texts, RECIPE, tmp_path, fast=False)
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        distill.distill(target, texts, replace(RECIPE, rate=1e-4), tmp_path, fast=False)
