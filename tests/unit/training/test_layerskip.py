"""Layer dropout and early-exit loss by hand values, the padded pass against the plain decoder, and runs in pieces."""

from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from support.pieces import assert_pieces_end_alike

from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.exits import exit_logits
from lessons_lib.models.lora import adapters
from lessons_lib.training import layerskip
from lessons_lib.training.collect import Text
from lessons_lib.training.layerskip import (
    Batch,
    LayerDropout,
    LayerSkipRecipe,
    PaddedDecoder,
    dropout_rates,
    evaluate_exits,
    exit_weights,
    gradual,
    points_lost,
    rotational,
    train_layerskip,
)

LAYERS = 4

RECIPE = LayerSkipRecipe(rank=2, steps=6, tokens=50, warmup=2, p_max=0.5)


@pytest.fixture(scope="module")
def deep() -> Decoder:
    """A tiny decoder of four layers."""
    return Decoder.from_transformers(tiny(layers=LAYERS))


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    """Texts of unequal lengths, with prompts of unequal lengths."""
    return [Text(f"t/{n}", [(7 * n + 3 * i) % 97 for i in range(6 + 2 * n)], 2 + n % 3) for n in range(9)]


def everything(layers: int) -> torch.Tensor:
    return torch.ones(layers, dtype=torch.bool)


# --- Weights of the exits


@pytest.mark.parametrize("e_scale, wanted", [(1.0, [0, 0.1, 0.3, 0.6]), (0.2, [0, 0.0455, 0.1364, 0.8182])])
def test_weights_of_four_exits_by_hand(e_scale, wanted):
    assert exit_weights(4, e_scale, everything(4)).tolist() == pytest.approx(wanted, abs=5e-5)


@pytest.mark.parametrize("e_scale, wanted", [(1.0, 0.0968), (0.2, 0.1195), (0.1, 0.1463)])
def test_the_last_of_thirty_layers_keeps_a_tenth_of_the_loss(e_scale, wanted):
    assert float(exit_weights(30, e_scale, everything(30))[-1]) == pytest.approx(wanted, abs=5e-5)


def test_the_rotational_curriculum_by_hand():
    enabled = rotational(0, 30, period=8)
    assert enabled.nonzero()[:, 0].tolist() == [0, 8, 16, 24, 29]
    weights = exit_weights(30, 0.2, enabled)
    assert weights[[8, 16, 24, 29]].tolist() == pytest.approx([0.0352, 0.1329, 0.2933, 0.5386], abs=5e-5)
    assert weights[0] == 0 and float(weights.sum()) == pytest.approx(1)
    assert torch.stack([rotational(step, 30, 8) for step in range(8)]).any(0).all()


def test_the_gradual_curriculum_goes_from_the_last_layer_to_the_first_in_half_the_steps():
    counts = [int(gradual(step, 30, 1200).sum()) for step in (0, 20, 40, 100, 300, 600)]
    assert counts == [1, 1, 2, 5, 15, 30]  # at step 0 only the last one, which is always on
    assert gradual(100, 30, 1200).nonzero()[:, 0].tolist() == [25, 26, 27, 28, 29]


# --- Layer dropout


def test_dropout_rates_grow_from_nothing_to_p_max():
    assert dropout_rates(30, 1.0)[0] == 0 and float(dropout_rates(30, 1.0)[-1]) == pytest.approx(1)
    for layers, mean in ((30, 0.0889), (32, 0.0889), (24, 0.0890)):
        assert float(dropout_rates(layers, 0.2).mean()) == pytest.approx(mean, abs=5e-5)
    assert dropout_rates(30, 0.1)[[10, 20]].tolist() == pytest.approx([0.0270, 0.0613], abs=5e-5)


def test_layers_and_texts_are_dropped_at_their_rates_and_independently():
    rates, draws = dropout_rates(6, 0.4), 20_000
    dropout, dropped = LayerDropout(rates, seed=0), torch.ones(2, 6, draws)
    for batch in range(2):
        for layer, those in enumerate(dropout.keep(draws)):
            dropped[batch, layer, those] = 0
    sigma = (rates * (1 - rates) / draws).sqrt()
    assert ((dropped.mean(-1) - rates).abs() <= 3 * sigma + 1e-12).all()
    first, second = dropped
    pairs = [
        (first[5, 1:], first[5, :-1], rates[5] ** 2),  # two texts of one layer
        (first[5], second[5], rates[5] ** 2),  # two batches
        (first[4], first[5], rates[4] * rates[5]),  # two layers of one text
    ]
    for a, b, both in pairs:
        assert abs((a * b).mean() - both) < 4 * (both * (1 - both) / draws).sqrt()


class Fixed:
    """Layer dropout that keeps the texts it was given."""

    def __init__(self, kept):
        self.kept = [torch.tensor(those, dtype=torch.long) for those in kept]

    def keep(self, texts):
        return self.kept


def test_a_dropped_text_passes_a_layer_unchanged_and_the_others_are_not_rescaled(deep, texts):
    padded, batch = PaddedDecoder(deep), Batch.of(texts[:3])
    kept = [[0, 1, 2], [], [1], [0, 2]]  # all, none and exactly one text kept
    found = list(padded.states(batch.ids, Fixed(kept)))
    x = deep.embedding(batch.ids)
    for layer, those in enumerate(kept):
        for n in range(3):
            if n in those:
                segment = layerskip.Segment(torch.arange(x.shape[1]), layerskip.NoCache())
                wanted = deep(batch.ids[n], [segment], layers=range(layer, layer + 1), states=x[n]).last
            else:
                wanted = x[n]
            torch.testing.assert_close(found[layer][n], wanted)
        x = found[layer]


# --- The pass and the loss


def test_every_exit_of_a_padded_batch_has_the_logits_of_the_plain_decoder(deep, texts):
    batch = Batch.of(texts)
    states = list(PaddedDecoder(deep).states(batch.ids))
    for n, text in enumerate(texts):
        for x, wanted in zip(states, exit_logits(deep, text.ids[:-1]), strict=True):
            torch.testing.assert_close(deep.logits(x[n, : len(text.ids) - 1]), wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(wanted, deep.read(texts[-1].ids[:-1]))


def test_only_answers_and_their_end_count(texts):
    batch = Batch.of(texts)
    answers = [text.ids[text.prompt_length :] for text in texts]
    assert batch.labels.tolist() == [token for answer in answers for token in answer]
    assert batch.owner.tolist() == [n for n, answer in enumerate(answers) for _ in answer]
    before = batch.ids.flatten()[batch.rows].tolist()
    assert before == [token for t in texts for token in t.ids[t.prompt_length - 1 : -1]]


@pytest.mark.parametrize("rows", [3, 1000])
def test_the_gradient_is_that_of_the_weighted_losses_of_all_exits(deep, texts, monkeypatch, rows):
    monkeypatch.setattr(layerskip, "ROWS", rows)
    recipe = replace(RECIPE, p_max=0.0, curriculum="rotational", period=1)
    run = layerskip.fresh(deep, recipe, {})
    with torch.no_grad():
        for name, weight in run.weights.items():
            if name.endswith(".B"):
                weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    weights, loss = exit_weights(LAYERS, recipe.e_scale, everything(LAYERS)), 0
    count = sum(len(text.ids) - text.prompt_length for text in texts)
    for text in texts:
        segment = layerskip.Segment(torch.arange(len(text.ids) - 1), layerskip.NoCache())
        states = run.model(torch.tensor(text.ids[:-1]), [segment], after=range(1, LAYERS + 1)).after
        for layer in range(LAYERS):
            log_p = run.model.logits(states[layer + 1]).log_softmax(-1)
            for at in range(text.prompt_length, len(text.ids)):
                loss = loss - weights[layer] / count * log_p[at - 1, text.ids[at]]
    wanted = torch.autograd.grad(loss, list(run.weights.values()))
    norm = torch.cat([gradient.flatten() for gradient in wanted]).norm()
    layerskip.train_step(run, texts)
    assert run.curve[0]["loss"] == pytest.approx(float(loss.detach()), abs=1e-4) and run.curve[0]["exits"] == LAYERS - 1
    for weight, gradient in zip(run.weights.values(), wanted, strict=True):
        torch.testing.assert_close(weight.grad, min(1.0, float(1 / norm)) * gradient, rtol=1e-4, atol=1e-8)


# --- Runs


def train(deep, texts, folder, recipe=RECIPE, **options):
    return train_layerskip(deep, texts, recipe, folder, **options)


@pytest.mark.parametrize("curriculum", ["gradual", "rotational", "last"])
def test_a_run_in_pieces_ends_with_the_very_weights_of_a_run_in_one_go(deep, texts, tmp_path, curriculum):
    in_folder = partial(train, deep, texts, recipe=replace(RECIPE, curriculum=curriculum, period=2))
    whole = assert_pieces_end_alike(in_folder, tmp_path, steps=6)
    again = layerskip.trained(deep, tmp_path / "parts")
    for ours, theirs in zip(again.dropout.generators, whole.dropout.generators, strict=True):
        assert torch.equal(ours.get_state(), theirs.get_state())


def test_every_part_of_the_recipe_matters(deep, texts, tmp_path):
    changes = [{}, {"rank": 3}, {"alpha": 4.0}, {"p_max": 0.9}, {"e_scale": 0.1}, {"curriculum": "last"}, {"steps": 5}, {"tokens": 90}, {"rate": 1e-5}, {"warmup": 5}, {"seed": 1}]  # fmt: skip  # noqa: E501
    changes += [{"curriculum": "rotational", "period": period} for period in (2, 3)]
    assert {name for change in changes for name in change} == {field.name for field in fields(LayerSkipRecipe)}
    losses = {train(deep, texts, tmp_path / str(n), replace(RECIPE, **change)).curve[-1]["loss"]
              for n, change in enumerate(changes)}  # fmt: skip
    assert len(losses) == len(changes)


def test_an_unknown_curriculum_is_refused():
    with pytest.raises(ValueError, match="choose one of: gradual, rotational, last"):
        LayerSkipRecipe(curriculum="random")


def test_training_improves_early_exits_which_ordinary_fine_tuning_does_not(deep, texts, tmp_path):
    recipe = replace(RECIPE, steps=80, tokens=200, rate=2e-2, p_max=0.1, curriculum="rotational", period=1)
    before = evaluate_exits(deep, texts)["loss"]
    ours = evaluate_exits(train(deep, texts, tmp_path / "ours", recipe).model, texts)
    control = train(deep, texts, tmp_path / "control", replace(recipe, p_max=0.0, curriculum="last"))
    theirs = evaluate_exits(control.model, texts)
    assert ours["loss"][1] < 0.5 * before[1] and ours["loss"][1] < theirs["loss"][1]
    assert theirs["loss"][-1] < 0.5 * before[-1]
    assert control.curve[0]["loss"] == control.curve[0]["last"] and {row["exits"] for row in control.curve} == {1}


def test_the_model_stays_as_it_was(deep, texts, tmp_path):
    before = {name: weight.clone() for name, weight in deep.state_dict().items()}
    run = train(deep, texts, tmp_path)
    assert all(torch.equal(before[name], weight) for name, weight in deep.state_dict().items())
    assert all(weight.abs().max() > 0 for weight in adapters(run.model).values())


# --- Evaluation


@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_quality_of_exits_is_that_of_texts_read_one_by_one(deep, texts, monkeypatch, size):
    monkeypatch.setattr(layerskip, "ROWS", 5)
    monkeypatch.setattr(layerskip, "EXITS", (2, 30))  # and the last layer, whatever its number
    # the second half of the texts continue as the model would, so that some exits are right
    greedy = []
    for text in texts:
        ids = text.ids[: text.prompt_length]
        for _ in range(3):
            ids = [*ids, int(deep.read(ids)[-1].argmax())]
        greedy.append(replace(text, ids=ids))
    several = [*texts[:4], *greedy[4:]]
    found = evaluate_exits(deep, several, size)
    loss, right, agree, exact, entropy, count = *torch.zeros(3, LAYERS), [], 0.0, 0
    for text in several:
        logits = torch.stack(list(exit_logits(deep, text.ids[:-1])))[:, text.prompt_length - 1 :]
        labels = torch.tensor(text.ids[text.prompt_length :])
        log_p, best = logits.log_softmax(-1), logits.argmax(-1)
        loss -= log_p[:, torch.arange(len(labels)), labels].sum(1)
        right += (best == labels).sum(1)
        agree += (best == best[-1]).sum(1)
        exact.append((best == labels).all(1))
        entropy -= float((log_p[-1].exp() * log_p[-1]).sum())
        count += len(labels)
    exact = torch.stack(exact, 1)
    assert (found["texts"], found["tokens"]) == (9, count)
    for name, wanted in (("loss", loss), ("accuracy", right), ("agreement", agree)):
        assert found[name] == pytest.approx((wanted / count).tolist(), rel=1e-5)
    assert found["entropy"] == pytest.approx(entropy / count)
    assert found["exact_match"] == pytest.approx(exact.double().mean(1).tolist())
    assert found["exact"] == {str(e): "".join(str(int(x)) for x in exact[e - 1]) for e in (2, 4)}
    assert found["exact"]["4"] == "000011111"


def test_points_lost_are_paired():
    ours, control = {"2": "0000", "4": "1011" * 250}, {"4": "1111" * 250}
    found = points_lost(ours, control)
    assert found["value"] == pytest.approx(25) and found["low"] < 25 < found["high"] and found["texts"] == 1000
    assert 20 < found["low"] and found["high"] < 30
    same = points_lost(control, control)
    assert same["value"] == same["low"] == same["high"] == 0
