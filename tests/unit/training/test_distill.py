"""The loss by hand, what is trained and what is not, and a run in pieces that ends like a run in one go."""

import math
from dataclasses import replace

import pytest
import torch

from lessons_lib.models.draft import own_weights
from lessons_lib.training import distill
from lessons_lib.training.batched import Text
from lessons_lib.training.distill import Recipe, distillation_loss

RECIPE = Recipe(layers=(1,), kept=40, steps=6, tokens=50, warmup=2, skip=1)


def test_the_loss_is_the_divergence_mixed_with_the_likeliest_tokens_surprise():
    p, q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.4, 0.6]]).log()
    divergence = 0.75 * math.log(0.75 / 0.4) + 0.25 * math.log(0.25 / 0.6)
    loss = lambda hard: distillation_loss(p.double(), q.double(), torch.ones(1), hard).item()  # noqa: E731
    assert loss(0.0) == pytest.approx(divergence) and loss(1.0) == pytest.approx(-math.log(0.4))
    assert loss(0.3) == pytest.approx(0.7 * divergence - 0.3 * math.log(0.4))


def test_positions_count_by_their_weights():
    p = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64).log()
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log()
    one = distillation_loss(p[:1], q[:1], torch.ones(1), 0.0)
    assert distillation_loss(p, q, torch.tensor([1.0, 3.0]), 0.0).item() == pytest.approx(one.item() / 4)


def test_states_are_compared_by_their_angle():
    theirs, ours = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[6.0, 8.0], [0.0, 2.0]])
    assert distill.distance(theirs, ours, torch.tensor([3.0, 1.0])).item() == pytest.approx(0.25)


def test_answers_weigh_1_prompts_less_and_the_template_nothing():
    text = Text("k", [1, 10, 11, 12, 20, 21, 22], prompt_length=4)
    weights = distill.position_weights(text, Recipe(skip=1, prompt=0.25))
    assert weights.tolist() == [0, 0.25, 0.25, 1, 1, 1]  # row 3 chooses token 4, the answer's first


def test_a_text_in_a_pack_is_read_as_if_alone(target):
    together = distill.read(target, [[5, 80, 3], [7, 9], [1]])
    alone = torch.cat([distill.read(target, [ids]) for ids in ([5, 80, 3], [7, 9], [1])])
    assert torch.allclose(together, alone, atol=1e-12)


def test_the_head_keeps_the_tokens_that_texts_use_most_then_the_lowest_ids():
    text = Text("k", [8, 8, 8, 8, 50, 50, 9, 70], prompt_length=4)
    assert distill.frequent([text], 97, 2).tolist() == [8, 50]
    assert distill.frequent([text], 97, 6).tolist() == [0, 1, 8, 9, 50, 70]


def test_every_epoch_reads_every_text_once():
    order = distill.schedule([10] * 12, Recipe(tokens=30, seed=3))
    first, second = ([index for _ in range(4) for index in next(order)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12)) and first != second


def test_training_brings_the_draft_nearer_to_its_target(target, texts, tmp_path):
    recipe = replace(RECIPE, steps=60, warmup=5, rate=3e-3)
    curve = distill.distill(target, texts, recipe, tmp_path, fast=False).curve
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"] and curve[-1]["step"] == 60


def test_only_what_the_draft_owns_is_trained(target, texts, tmp_path):
    before = distill.fresh(target, RECIPE, distill.frequent(texts, 97, 40)).draft
    run = distill.distill(target, texts, RECIPE, tmp_path, fast=False)
    assert torch.equal(run.draft.embedding.weight, target.embedding.weight)
    assert torch.equal(run.draft.head.weight, target.head.weight[run.draft.kept])
    trained, started = own_weights(run.draft), own_weights(before)
    assert len(trained) == 7 and not any(torch.equal(trained[name], started[name]) for name in trained)


@pytest.mark.parametrize("fast", [False, True])
def test_a_run_in_pieces_ends_with_the_very_weights_of_a_run_in_one_go(target, texts, tmp_path, fast):
    whole = distill.distill(target, texts, RECIPE, tmp_path / "whole", fast=fast)
    for step in range(1, 7):
        parts = distill.distill(target, texts, RECIPE, tmp_path / "parts", minutes=1e-9, fast=fast)
        assert parts.step == step
    assert parts.curve == whole.curve
    for name, weight in own_weights(whole.draft).items():
        assert torch.equal(weight, own_weights(parts.draft)[name])


def test_every_part_of_the_recipe_matters(target, texts, tmp_path):
    losses = set()
    for number, change in enumerate([{}, {"states": 1.0}, {"prompt": 0.7}, {"skip": 3}, {"rate": 1e-5}, {"warmup": 5}]):
        run = distill.distill(target, texts, replace(RECIPE, **change), tmp_path / str(number), fast=False)
        losses.add(run.curve[-1]["loss"])
    assert len(losses) == 6


def test_a_finished_run_is_not_trained_further(target, texts, tmp_path):
    distill.distill(target, texts, RECIPE, tmp_path, fast=False)
    assert distill.distill(target, texts, RECIPE, tmp_path, fast=False).step == 6


def test_a_run_of_another_recipe_is_refused(target, texts, tmp_path):
    distill.distill(target, texts, RECIPE, tmp_path, fast=False)
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        distill.distill(target, texts, replace(RECIPE, rate=1e-4), tmp_path, fast=False)


def test_a_folder_without_a_run_says_what_to_do(target, tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint; run"):
        distill.trained(target, tmp_path)


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine():
    recipe = Recipe(warmup=4, steps=12)
    paces = [distill.pace(step, recipe) for step in range(13)]
    assert paces[:5] == [0.25, 0.5, 0.75, 1, 1] and paces[8] == pytest.approx(0.5) and paces[12] == pytest.approx(0)
