"""The loss of an exit adapter, what is trained, the model's own texts, and a run in pieces."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.pieces import assert_pieces_end_alike

from lessons_lib import generate
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.exits import exit_logits
from lessons_lib.training import exit_adapter
from lessons_lib.training.collect import Text
from lessons_lib.training.evaluate import right_at_exits, tokens_per_pass
from lessons_lib.training.exit_adapter import (
    ExitRecipe,
    answer_states,
    divergence,
    evaluate_exit,
    own_texts,
    stored_texts,
    train_exit,
)
from lessons_lib.training.layerskip import PaddedDecoder
from lessons_lib.training.prompts import UserTurn

RECIPE = ExitRecipe(exit_layer=1, steps=5, tokens=60, warmup=2)


def by_hand(target, adapter, texts) -> tuple[float, float]:
    """Mean KL(p_L, p_E) and agreement, text by text."""
    found, agree = [], []
    for text in texts:
        segment = exit_adapter.Batch.of([text])
        theirs = list(exit_logits(target, text.ids[:-1]))[-1][text.prompt_length - 1 :].log_softmax(-1)
        early = list(PaddedDecoder(target).states(segment.ids))[adapter.exit_layer - 1][0, text.prompt_length - 1 :]
        ours = target.logits(adapter(early)).detach().log_softmax(-1)
        found.append((theirs.exp() * (theirs - ours)).sum(-1))
        agree.append(theirs.argmax(-1) == ours.argmax(-1))
    return float(torch.cat(found).mean()), float(torch.cat(agree).double().mean())


def test_the_loss_is_the_divergence_of_the_exit_from_the_last_layer_on_answers(target, texts):
    adapter = exit_adapter.fresh(target, RECIPE).adapter
    with torch.no_grad():
        adapter.W2.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    kl, agreement = by_hand(target, adapter, texts)
    for rows in (1, 3, 100):
        states = answer_states(target, texts, 1, rows)
        loss, agree = divergence(target, adapter, states)
        assert loss.item() == pytest.approx(kl) and agree.double().mean().item() == pytest.approx(agreement)
    found = evaluate_exit(target, adapter, texts, states)
    assert found["kl"] == pytest.approx(kl) and found["agreement"] == pytest.approx(agreement)
    assert found["tokens"] == sum(len(text.ids) - text.prompt_length for text in texts) and found["texts"] == len(texts)


def test_training_makes_the_exit_agree_and_leaves_the_model_as_it_was(target, texts, tmp_path):
    before = {name: weight.clone() for name, weight in target.state_dict().items()}
    states = answer_states(target, texts, 1)
    untrained = evaluate_exit(target, exit_adapter.fresh(target, RECIPE).adapter, texts, states)
    recipe = ExitRecipe(exit_layer=1, steps=100, tokens=200, rate=1e-2, warmup=5)
    run = train_exit(target, texts, recipe, tmp_path)
    trained = evaluate_exit(target, run.adapter, texts, states)
    assert trained["kl"] < 0.5 * untrained["kl"] and trained["agreement"] > untrained["agreement"]
    assert all(torch.equal(before[name], weight) for name, weight in target.state_dict().items())


def test_a_run_in_pieces_ends_with_the_very_weights_of_a_run_in_one_go(target, texts, tmp_path):
    assert_pieces_end_alike(partial(train_exit, target, texts, RECIPE), tmp_path, steps=5)
    again = exit_adapter.trained(target, tmp_path / "parts")
    assert again.step == 5 and again.adapter.exit_layer == 1


@pytest.fixture(scope="module")
def writer(model) -> LanguageModel:
    network = tiny()
    network.generation_config.eos_token_id = 2
    return replace(model, network=network)


def test_the_first_text_of_a_prompt_is_greedy_and_ends_where_the_model_ends(writer):
    turns = [UserTurn(f"own-qa-form-{n}", "qa", "a" * (n + 1)) for n in range(7)]
    state = torch.get_rng_state()
    texts = own_texts(writer, turns, copies=2, seed=0, max_new=12, rows=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert [text.key for text in texts] == [f"qa/own-qa-form-{n}" for n in range(7)] * 2
    assert [text.temperature for text in texts] == [0.0] * 7 + [0.8] * 7
    target = DecoderTarget(Decoder.from_transformers(writer.network), eos=[2])
    for turn, text in zip(turns, texts, strict=False):
        assert text.prompt_length == len(turn.text) + 1
        assert text.ids[text.prompt_length :] == list(
            generate(target, text.ids[: text.prompt_length], max_new_tokens=12).ids
        )
    for text in texts:
        answer = text.ids[text.prompt_length :]
        assert 2 not in answer[:-1] and 1 <= len(answer) <= 12
    assert [t.ids for t in own_texts(writer, turns, copies=2, seed=0, max_new=12, rows=3)] == [t.ids for t in texts]
    assert [t.ids for t in own_texts(writer, turns, copies=2, seed=1, max_new=12, rows=3)] != [t.ids for t in texts]


def test_tokens_per_pass_are_those_of_the_exits_draft_tokens_on_texts_that_were_not_sampled(target):
    ids, texts = [5, 80, 3], []
    for n in range(3):
        new = generate(DecoderTarget(target), [*ids, n], max_new_tokens=12).ids
        texts.append(Text(f"t/{n}", [*ids, n, *new], 4, 0.8 if n == 2 else 0.0))
    adapter = exit_adapter.fresh(target, RECIPE).adapter
    wanted = tokens_per_pass([right_at_exits(target, text, [1])[1] for text in texts[:2]], 4)
    found = evaluate_exit(target, adapter, texts, answer_states(target, texts, 1))
    assert found["tokens_per_pass"] == pytest.approx(wanted) and found["texts"] == 3


def test_texts_are_written_once_for_every_recipe_that_changes_them(tmp_path):
    ours, theirs = [Text("ours", [1, 2], 1, 0.8)], [Text("theirs", [1, 3], 1)]
    assert stored_texts(tmp_path, RECIPE, lambda: ours) == ours
    assert stored_texts(tmp_path, replace(RECIPE, rate=1e-5), lambda: 1 / 0) == ours
    for other in ({"prompts": 40}, {"copies": 1}, {"seed": 1}):
        assert stored_texts(tmp_path, replace(RECIPE, **other), lambda: theirs) == theirs


@pytest.mark.parametrize("layer", [0, 2])
def test_an_exit_that_is_none_is_refused(target, layer):
    with pytest.raises(ValueError, match="is no early exit; choose from 1 to 1"):
        exit_adapter.fresh(target, ExitRecipe(exit_layer=layer))
