"""Model and heads together: each part of the loss by itself, what is trained, and the model that comes of it."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.heads import random_heads
from support.pieces import assert_pieces_end_alike

from lessons_lib import Medusa, generate
from lessons_lib.decoding.proposers.medusa import regular
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.models.lora import merged
from lessons_lib.models.medusa import MedusaHeads
from lessons_lib.training import joint
from lessons_lib.training.heads_loss import judge, total
from lessons_lib.training.joint import JointRecipe, train_joint

RECIPE = JointRecipe(rank=2, steps=5, tokens=60, warmup=2)
IDS = [5, 80, 3, 3, 61]


def train(target, texts, folder, recipe=RECIPE, **options):
    return train_joint(target, MedusaHeads(target.head.weight, 2), texts, recipe, folder, **options)


def test_at_first_nothing_diverges_and_the_loss_is_the_heads(target, texts, tmp_path):
    first = train(target, texts, tmp_path).curve[0]
    assert first["kl"] == pytest.approx(0, abs=1e-4) and first["heads"] > 1
    assert first["loss"] == pytest.approx(0.2 * first["heads"], rel=1e-3)


@pytest.mark.parametrize("anchor_rank", [0, 4])
def test_the_gradient_is_that_of_the_whole_loss(target, texts, tmp_path, anchor_rank):
    """Against autograd through everything at once."""
    run = joint.fresh(target, random_heads(target.head.weight, 2, anchor_rank=anchor_rank), RECIPE)
    with torch.no_grad():
        for weight in run.adapters.B:
            weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    states = joint.states(run, target, texts[:3])
    theirs, chosen, labels = joint.batch(texts[:3], 2)
    log_p, log_q = ((s @ target.head.weight.T).log_softmax(-1) for s in (theirs, states))
    loss = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    guesses = run.heads(states, chosen=chosen).log_softmax(-1)
    for k in range(2):
        right = [(i, label) for i, label in enumerate(labels[:, k].tolist()) if label >= 0]
        loss += 0.2 * 0.8 ** (k + 1) * -torch.stack([guesses[i, k, label] for i, label in right]).mean()
    expected = torch.autograd.grad(loss, list(joint.weights(run).values()))
    norm = torch.cat([g.flatten() for g in expected]).norm()
    joint.joint_step(run, target, texts[:3])
    assert run.curve[0]["loss"] == pytest.approx(float(loss.detach()), abs=1e-4)
    clipped = min(1.0, float(1 / norm))
    for weight, gradient in zip(joint.weights(run).values(), expected, strict=True):
        torch.testing.assert_close(weight.grad, clipped * gradient, rtol=1e-4, atol=1e-7)


def test_both_are_trained_the_model_itself_is_not_and_heads_learn_faster(target, texts, tmp_path):
    before = copy.deepcopy(target.state_dict())
    run = train(target, texts, tmp_path)
    assert all(torch.equal(before[name], weight) for name, weight in target.state_dict().items())
    assert all(weight.abs().max() > 0 for weight in [*run.adapters.B, *run.heads.parameters()])
    slow, fast = (group["lr"] for group in run.optimizers[0].param_groups)
    assert fast == pytest.approx(4 * slow)


def test_heads_get_better_at_the_price_of_a_small_divergence(target, texts, tmp_path):
    curve = train(target, texts, tmp_path, replace(RECIPE, steps=40, tokens=200, rate=2e-3)).curve
    assert curve[-1]["heads"] < curve[0]["heads"] and 0 < curve[-1]["kl"] < 1


def test_texts_that_train_nothing_are_looked_at_before_the_first_step_on_the_way_and_in_the_end(
    target, texts, tmp_path, monkeypatch
):
    monkeypatch.setattr(joint, "LOOK_EVERY", 20)
    run = train(target, texts, tmp_path, replace(RECIPE, steps=40, tokens=200, rate=2e-3), held=texts[:3])
    looks = {row["step"]: row for row in run.curve if "held_kl" in row}
    assert list(looks) == [1, 21, 40] and all(len(row["top1"]) == 2 for row in looks.values())
    assert looks[1]["held_kl"] == pytest.approx(0, abs=1e-4) and 0 < looks[40]["held_kl"] < 1
    untrained = total(torch.tensor(judge(MedusaHeads(target.head.weight, 2), texts[:3])["loss"]), RECIPE.decay)
    assert looks[1]["held_heads"] == pytest.approx(untrained, rel=1e-3) and looks[40]["held_heads"] < untrained
    assert "held_kl" not in train(target, texts, tmp_path / "none").curve[0]


def test_the_text_is_that_of_the_model_that_was_trained(target, texts, tmp_path):
    run = train(target, texts, tmp_path, replace(RECIPE, steps=20, rate=1e-2))
    new = DecoderTarget(merged(target, run.adapters))
    plain = generate(new, IDS, max_new_tokens=20).ids
    assert generate(new, IDS, Medusa(run.heads, regular(5, 3)), max_new_tokens=20).ids == plain
    assert plain != generate(DecoderTarget(target), IDS, max_new_tokens=20).ids


def test_a_run_in_pieces_ends_with_the_very_weights_of_a_run_in_one_go(target, texts, tmp_path):
    assert_pieces_end_alike(partial(train, target, texts), joint.weights, tmp_path, steps=5)


def test_a_run_of_another_recipe_is_refused(target, texts, tmp_path):
    train(target, texts, tmp_path)
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        train(target, texts, tmp_path, replace(RECIPE, balance=0.5))
