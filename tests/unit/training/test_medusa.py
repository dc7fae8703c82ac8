"""What a head should predict, its loss, what is trained, and a run in pieces that ends as in one go."""

from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from support.heads import random_heads
from support.pieces import assert_pieces_end_alike

from lessons_lib.decoding.proposers.medusa import MedusaHeads
from lessons_lib.training import collect, medusa, prompts
from lessons_lib.training.collect import Text, Writer
from lessons_lib.training.medusa import MISSING, HeadsRecipe, train_heads
from lessons_lib.training.prompts import UserTurn, again, own

RECIPE = HeadsRecipe(heads=2, steps=6, tokens=50, warmup=2)

TOPICS = [" ".join(topic.split()) for topic in prompts.TOPICS.split(",")]


@pytest.fixture(scope="module")
def many(target) -> list[Text]:
    """Texts of which some are held back."""
    jobs = [Text(f"chat/{n}", [(3 + n) % 97, (5 + 2 * n) % 97], 2) for n in range(160)]
    writer = Writer(target, eos=(), rows=8, capacity=30, max_new=20)
    return sorted(writer.write(jobs), key=lambda text: text.key)


def train(target, texts, folder, recipe=RECIPE, **options):
    return train_heads(target.head.weight, texts, recipe, folder, **options)


def test_head_k_predicts_the_token_k_places_after_the_next_one():
    text = Text("k", [10, 11, 12, 13, 14, 15], prompt_length=3, hidden=torch.arange(5.0)[:, None])
    states, chosen, labels = medusa.examples(text, 2)
    assert states.flatten().tolist() == [2, 3, 4]  # the first of them chose token 3, the answer's first
    assert chosen.tolist() == [13, 14, 15]
    assert labels.tolist() == [[14, 15], [15, MISSING], [MISSING, MISSING]]


def test_the_loss_of_untrained_heads_is_the_models_own_surprise_at_later_tokens(target, texts):
    untrained = MedusaHeads(target.head.weight, 2)
    found = medusa.judge(untrained, texts)["loss"]
    for k in (1, 2):
        surprises = []
        for text in texts:
            log_p = (text.hidden @ target.head.weight.T).log_softmax(-1)
            rows = range(text.prompt_length - 1, len(text.ids) - 1 - k)
            surprises += [-float(log_p[row, text.ids[row + 1 + k]]) for row in rows]
        assert found[k - 1] == pytest.approx(sum(surprises) / len(surprises), rel=1e-5)


def test_head_k_counts_lambda_to_the_k():
    assert medusa.total([1.0, 10.0], 0.8) == pytest.approx(0.8 + 0.64 * 10)


@pytest.mark.parametrize("form", [dict(), dict(root_rank=2)], ids=str)
def test_the_gradient_is_that_of_the_weighted_means_across_chunks(form, monkeypatch):
    random = torch.Generator().manual_seed(0)
    states, labels = torch.randn(7, 4, generator=random).double(), torch.randint(0, 9, (7, 2), generator=random)
    labels[5:, 1] = labels[6:, 0] = MISSING
    chunked, whole = (random_heads(torch.eye(9, 4).double() + 1, 2, **form) for _ in range(2))
    chosen = torch.arange(7)
    log_q = whole(states, chosen=chosen).log_softmax(-1)
    means = [-torch.stack([log_q[i, k, labels[i, k]] for i in range(count)]).mean() for k, count in ((0, 6), (1, 5))]
    (0.5 * means[0] + 0.25 * means[1]).backward()
    monkeypatch.setattr(medusa, "ROWS", 2)
    losses = medusa.backward(chunked, states, chosen, labels, decay=0.5)
    assert losses.tolist() == pytest.approx([float(mean.detach()) for mean in means])
    for found, expected in zip(chunked.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


SCORES = torch.tensor([[0.0, 3, 2, 1], [3, 2, 1, 0], [0, 1, 2, 3], [0.0, 0, 0, 1]])

SCORED = Text("k", [0, 1, 2, 0, 1], 1, hidden=SCORES)  # row 0 should predict 2, row 1 token 0, row 2 token 1


def test_accuracies_say_at_which_rank_the_right_token_stood():
    known = MedusaHeads(torch.eye(4), 1)  # scores are the states themselves
    assert medusa.judge(known, [SCORED])["accuracies"] == [pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])]
    assert medusa.judge(known, [])["accuracies"] == [[0.0] * 4]


def test_trimmed_heads_learn_and_are_judged_by_the_tokens_that_they_score():
    known = MedusaHeads(torch.eye(4), 1)
    known.trim(torch.tensor([1, 2, 3]))
    found = medusa.judge(known, [SCORED])
    assert found["accuracies"] == [pytest.approx([0, 1 / 3, 1 / 3])]  # token 0 is not scored: a miss
    surprises = [-float(row[1:].log_softmax(-1)[at]) for row, at in ((SCORES[0], 1), (SCORES[2], 0))]
    assert found["loss"] == pytest.approx([sum(surprises) / 2])
    losses = medusa.backward(known, *medusa.batch([SCORED], 1), decay=1.0)
    assert losses.tolist() == pytest.approx(found["loss"])


def test_training_lowers_the_loss_on_texts_that_train_nothing(target, many, tmp_path, monkeypatch):
    monkeypatch.setattr(medusa, "LOOK_EVERY", 20)
    run = train(target, many, tmp_path, replace(RECIPE, steps=60, tokens=200, rate=3e-3))
    looks = [row for row in run.curve if "held_loss" in row]
    assert [row["step"] for row in looks] == [20, 40, 60] and len(run.curve) == 60
    start = medusa.look(medusa.fresh(target.head.weight, RECIPE), medusa.split(many)[1])
    assert looks[-1]["held_loss"] < looks[0]["held_loss"] < start["held_loss"]
    assert all(len(row["top1"]) == len(row["top5"]) == 2 for row in looks)
    assert all(one <= five for row in looks for one, five in zip(row["top1"], row["top5"], strict=True))


def test_no_passage_and_no_topic_both_trains_and_watches():
    asked = [UserTurn(n, "summary", f"Sum up {n}.", f"passage {n}") for n in range(1, 90)]
    turns = asked + again(asked) + own()
    texts = [Text(f"{turn.kind}/{turn.key}", [], 0) for turn in turns]
    about = {text.key: turn.context or max((t for t in TOPICS if t in turn.text), key=len)
             for turn, text in zip(turns, texts, strict=True)}  # fmt: skip
    parts = [{about[text.key] for text in part} for part in medusa.split(texts)]
    assert not parts[0] & parts[1] and 0.05 < len(parts[1]) / len(parts[0] | parts[1]) < 0.15


def test_prompts_on_one_passage_and_a_task_and_its_solution_are_in_one_part(model, tmp_path):
    pairs = []
    for n in range(2, 300, 2):
        pairs += [UserTurn(n, "qa", "Who?", f"passage {n}"), UserTurn(n + 1, "summary", "Sum up", f"passage {n}")]
        pairs += [UserTurn(1000 + n, "code", "Write"), UserTurn(1001 + n, "code-edit", "Rewrite", f"def f{n}")]
    turns = pairs + again(pairs)
    texts = list(collect.plan(model.target(), turns, 0))
    for text in texts:
        text.hidden = torch.zeros(len(text.ids) - 1, 1)
    collect.save(texts, tmp_path / "0.safetensors")
    number = {f"{turn.kind}/{turn.key}": int(str(turn.key).partition("-")[0]) // 2 for turn in turns}
    parts = [{number[text.key] for text in part} for part in medusa.split(collect.read_all(tmp_path))]
    assert not parts[0] & parts[1] and 0.05 < len(parts[1]) / len(parts[0] | parts[1]) < 0.15


def test_trained_heads_look_k_tokens_further_than_the_next_one(tmp_path):
    """Tokens that count in a circle; the model's own head sends each on to the next."""
    next_one = torch.eye(8).roll(1, 1)  # state of token t -> scores of t + 1
    ids = [token % 8 for token in range(40)]
    texts = [Text(f"chat/{n}", ids[n:], 2, hidden=4 * torch.eye(8)[ids[n:-1]]) for n in range(8)]
    recipe = HeadsRecipe(heads=3, steps=150, tokens=100, rate=0.05, warmup=5)
    run = train_heads(next_one.T.contiguous(), texts, recipe, tmp_path)
    states = 4 * torch.eye(8)
    assert ((states @ next_one).argmax(-1) == (torch.arange(8) + 1) % 8).all()
    for k in (1, 2, 3):
        assert (run.heads(states)[:, k - 1].argmax(-1) == (torch.arange(8) + 1 + k) % 8).all()


def test_only_heads_that_read_the_root_can_learn_what_follows_it_alone(tmp_path):
    """States that say nothing: the token after next is known from the next one, which was chosen from them."""
    lm_head = torch.eye(8)
    chains = [[0, 0, *[(start + 3 * n) % 8 for n in range(12)]] for start in range(8)]
    texts = [Text(f"chat/{n}", ids, 2, hidden=torch.ones(len(ids) - 1, 8)) for n, ids in enumerate(chains)]
    right = {}
    for rank in (0, 8):
        recipe = HeadsRecipe(heads=2, root_rank=rank, steps=200, tokens=100, rate=0.05, warmup=5)
        run = train_heads(lm_head, texts, recipe, tmp_path / str(rank))
        right[rank] = medusa.judge(run.heads, texts)["accuracies"][0][0]
    assert right[0] < 0.3 and right[8] > 0.95


def test_the_model_stays_as_it_was(target, many, tmp_path):
    before = target.head.weight.clone()
    run = train(target, many, tmp_path)
    assert torch.equal(target.head.weight, before) and run.heads.lm_head.data_ptr() == target.head.weight.data_ptr()
    assert all(weight.abs().max() > 0 for weight in run.heads.parameters())


def test_the_tenth_that_is_held_back_depends_on_the_key_alone_and_trains_nothing(target, many, tmp_path):
    training, held = medusa.split(many)
    first = [n for n in range(40) if f"chat/{n}" in [text.key for text in held]]
    assert first == [0, 7, 9, 10, 33]  # in every process
    assert len(training) + len(held) == len(many) and medusa.split(many[::-1])[1] == held[::-1]
    garbled = [replace(text, ids=[9] * len(text.ids)) if text in held else text for text in many]
    runs = [train(target, texts, tmp_path / name) for name, texts in (("as it is", many), ("garbled", garbled))]
    assert [row["loss"] for row in runs[0].curve] == [row["loss"] for row in runs[1].curve]
    assert runs[0].curve[-1]["held_loss"] != runs[1].curve[-1]["held_loss"]


@pytest.mark.parametrize("form", [{}, {"muon": 1}, {"root_rank": 2, "kept": 20}], ids=str)
def test_a_run_in_pieces_ends_with_the_very_weights_of_a_run_in_one_go(target, many, tmp_path, monkeypatch, form):
    monkeypatch.setattr(medusa, "LOOK_EVERY", 2)
    in_folder = partial(train, target, many, recipe=replace(RECIPE, **form))
    whole = assert_pieces_end_alike(in_folder, tmp_path, steps=6)
    assert "top5" in whole.curve[1]


def test_every_part_of_the_recipe_matters(target, many, tmp_path):
    changes = [{}, {"heads": 3}, {"blocks": 2}, {"root_rank": 2}, {"decay": 0.5}, {"steps": 5}, {"tokens": 90}, {"rate": 1e-5}, {"warmup": 5}, {"muon": 1}, {"seed": 1}, {"kept": 20}]  # fmt: skip  # noqa: E501
    assert {name for change in changes for name in change} == {field.name for field in fields(medusa.HeadsRecipe)}
    losses = {train(target, many, tmp_path / str(n), replace(RECIPE, **change)).curve[-1]["loss"]
              for n, change in enumerate(changes)}  # fmt: skip
    assert len(losses) == len(changes)
