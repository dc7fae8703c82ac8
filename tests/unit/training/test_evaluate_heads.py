"""Replayed counts are those of real decoding, and the command line ties the parts together."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.heads import random_heads

from lessons_lib import Medusa, generate
from lessons_lib.decoding.generate import tokens_per_forward
from lessons_lib.decoding.proposers.medusa import TreeShape, expected_tokens, regular
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.models.hub import OURS
from lessons_lib.models.medusa import CARD, WEIGHTS, load_heads, read_card, shared_parameters
from lessons_lib.training import __main__ as command_line
from lessons_lib.training import collect, heads_commands
from lessons_lib.training.checkpoint import runs
from lessons_lib.training.evaluate_heads import evaluate_heads, favourites, trace_of
from lessons_lib.training.heads import split, trained
from lessons_lib.training.heads_card import PAGE, in_words, tries
from lessons_lib.training.heads_card import page as page_of
from lessons_lib.training.heads_loss import judge
from lessons_lib.training.joint import JointRecipe

WIDE = regular(60, 4)  # of 97 tokens: about two of three first guesses are right


def replayed(heads, text, tree):
    return trace_of(heads, text, favourites(heads, text, tree.ranks), tree)


@pytest.mark.parametrize("anchor_rank", [0, 4])
@pytest.mark.parametrize("tree", [regular(1, 1), WIDE], ids=["chain", "wide"])
def test_replay_counts_the_steps_that_decoding_takes(target, texts, tree, anchor_rank):
    heads, accepted = random_heads(target.head.weight, 2, anchor_rank=anchor_rank), 0
    for text in texts:
        prompt, new = text.ids[: text.prompt_length], text.ids[text.prompt_length :]
        out = generate(DecoderTarget(target), prompt, Medusa(heads, tree), max_new_tokens=len(new))
        counts = [[(s.forwarded, s.proposed, s.accepted, s.committed) for s in trace]
                  for trace in (out.trace, replayed(heads, text, tree))]  # fmt: skip
        assert out.ids == new and counts[0] == counts[1]
        accepted += sum(s.accepted for s in out.trace)
    assert accepted > 10 or tree is not WIDE


def test_kinds_count_the_same_and_drawn_texts_not_at_all(target, texts):
    heads = random_heads(target.head.weight, 2)
    named = [replace(text, key=f"{kind}/{n}") for n, (kind, text) in enumerate(zip(["chat", "math", "math", "rewrite"], texts, strict=False))]  # fmt: skip  # noqa: E501
    drawn = [replace(text, key=f"chat/drawn-{text.key}", temperature=0.8) for text in texts[4:]]
    found, narrow = evaluate_heads(heads, [*named, *drawn], [WIDE, regular(1)])
    tau = lambda some: tokens_per_forward([s for text in some for s in replayed(heads, text, WIDE)])  # noqa: E731
    assert tau(named[:1]) != pytest.approx(tau([*named[:1], *drawn]), abs=1e-3)
    assert found["kinds"] == pytest.approx({"chat": tau(named[:1]), "math": tau(named[1:3]), "rewrite": tau(named[3:])}, abs=1e-4)  # fmt: skip  # noqa: E501
    assert found["macro"] == pytest.approx((found["kinds"]["chat"] + found["kinds"]["math"]) / 2)
    assert (found["nodes"], narrow["nodes"]) == (60 + 240, 1) and narrow["macro"] < found["macro"]


# the command line


@pytest.fixture
def at_home(model, texts, tmp_path, monkeypatch):
    """A tiny model under the target's name, its texts for training and for measuring, all below tmp_path."""
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(heads_commands, "model", lambda device="cpu": replace(model, name=heads_commands.TARGET))
    several = [replace(text, key=f"chat/{n}-{text.key}") for n in range(4) for text in texts]
    for held_out, some in ((False, several), (True, texts)):
        collect.folder(held_out).mkdir(parents=True)
        collect.save(some, collect.folder(held_out) / "00000.safetensors")
    return tmp_path


SMALL = [*"--heads 2 --steps 5 --tokens 100 --rate 0.05 --warmup 1 --kept 20 --device cpu".split()]


def test_heads_are_trained_judged_and_stored_by_commands(at_home, model, texts, capsys):
    assert command_line.main(["heads", *SMALL]) == 0
    assert '"step": 5' in capsys.readouterr().out
    assert command_line.main(["heads-evaluate", "--nodes", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == len(found["choices"]) == 6 and found["kinds"]["chat"] == pytest.approx(found["macro"])
    export = ["heads-export", "--into", str(at_home / "heads"), "--nodes", "6", "--note", "Rain."]
    assert command_line.main(export) == 0
    card = json.loads((at_home / "heads" / CARD).read_text())
    assert (card["base"], card["count"], card["steps"], card["texts"], card["note"]) == (heads_commands.TARGET, 2, 5, 40, "Rain.")  # fmt: skip  # noqa: E501
    assert card["recipe"]["tokens"] == 100 and [row["step"] for row in card["curve"]] == [5]
    stored = load_heads(at_home / "heads", heads_commands.model())
    used = Counter(token for text in collect.read_all(collect.folder()) for token in text.ids)
    assert card["kept"] == stored.scored == 20 and "among the 20 tokens that" in (at_home / "heads" / PAGE).read_text()
    assert sum(used[token] for token in stored.kept.tolist()) == sum(count for _, count in used.most_common(20))
    tree = TreeShape.of(card["after"]["choices"])
    calibration = split(collect.read_all(collect.folder()))[1]
    accuracies = judge(stored, calibration)["accuracies"]
    assert card["after"]["macro"] == evaluate_heads(stored, texts, [tree])[0]["macro"]
    assert card["after"]["expected"] == pytest.approx(expected_tokens(tree, accuracies))
    assert card["before"]["accuracies"] != card["after"]["accuracies"]
    page = (at_home / "heads" / PAGE).read_text()
    assert f"with a tree of 6 nodes; {card['after']['expected']:.2f} were" in page and "Rain." in page
    assert f"| after | {card['after']['kinds']['chat']:.2f}" in page
    shares = [sum(card[when]["accuracies"][1][:top]) for top in (1, 5) for when in ("before", "after")]
    assert "| 2 | " + " | ".join(f"{share:.0%}" for share in shares) in page
    assert f"{shared_parameters(2, 32):,} parameters in 2 heads" in page


def test_what_the_card_praises_is_what_was_stored(at_home, target, monkeypatch):
    stored = random_heads(target.head.weight, 2, seed=9)
    monkeypatch.setattr(heads_commands, "load_heads", lambda folder, model: stored)
    command_line.main(["heads", *SMALL])
    command_line.main(["heads-export", "--into", str(at_home / "heads")])
    card = json.loads((at_home / "heads" / CARD).read_text())
    assert card["after"]["accuracies"] == judge(stored, split(collect.training_texts())[1])["accuracies"]


def test_the_tree_is_chosen_by_texts_that_neither_train_nor_measure(at_home, monkeypatch):
    seen, judging = [], heads_commands.judge
    monkeypatch.setattr(heads_commands, "judge", lambda heads, texts: seen.extend(texts) or judging(heads, texts))
    command_line.main(["heads", *SMALL])
    command_line.main(["heads-evaluate"])
    training, held = split(collect.training_texts())
    keys = {text.key for text in seen}
    assert keys == {text.key for text in held} and keys
    assert not keys & {text.key for text in training} and not keys & {text.key for text in collect.held_out_texts()}  # fmt: skip  # noqa: E501


def test_a_run_that_is_not_there_is_one_sentence(at_home, capsys):
    assert command_line.main(["heads-evaluate", "--run", "other"]) == 2
    assert "holds no checkpoint; run `python -m lessons_lib.training heads` first" in capsys.readouterr().err


JOINT = [*"heads-joint --run small --start default --rank 2 --steps 4 --tokens 100 --warmup 1 --device cpu".split()]


@pytest.fixture
def with_heads(at_home, model, monkeypatch):
    """The same with heads that were trained alone, and the model at hand for training."""
    monkeypatch.setattr(heads_commands, "load", lambda name, device, dtype: model)
    command_line.main(["heads", *SMALL])


def test_heads_and_model_are_trained_together_by_a_command_that_goes_on_where_it_stopped(with_heads, capsys):
    assert command_line.main([*JOINT, "--minutes", "1e-9"]) == 0
    assert "1 of 4 steps, from {" in capsys.readouterr().out
    assert command_line.main(JOINT) == 0
    assert "4 of 4 steps, from {" in capsys.readouterr().out
    curve = json.loads((runs(heads_commands.HEADS, "small", "joint") / "curve.json").read_text())
    assert [row["step"] for row in curve] == [1, 2, 3, 4]
    assert all(row["loss"] == pytest.approx(row["kl"] + 0.2 * row["heads"], abs=1e-4) for row in curve)
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-3) and curve[-1]["kl"] > 0  # the model moves
    assert len(json.loads((runs(heads_commands.HEADS, "default") / "curve.json").read_text())) == 5  # that run stays


def test_training_together_begins_with_a_runs_heads_and_leaves_the_held_back_texts_out(with_heads, monkeypatch):
    seen = []
    done = SimpleNamespace(step=4, curve=[{"loss": 1.0}])
    monkeypatch.setattr(heads_commands, "train_joint", lambda *given: seen.append(given) or done)
    assert command_line.main([*JOINT, "--faster", "2", "--minutes", "7"]) == 0
    ((decoder, heads, texts, recipe, folder, minutes, held),) = seen
    own = trained(decoder.head.weight, runs(heads_commands.HEADS, "default")).heads
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(heads.parameters(), own.parameters(), strict=True))
    assert any(weight.abs().max() > 0 for weight in heads.parameters())
    assert {text.key for text in texts} == {text.key for text in split(collect.training_texts())[0]}
    assert {text.key for text in held} <= {text.key for text in split(collect.training_texts())[1]} and held
    assert recipe == JointRecipe(rank=2, steps=4, tokens=100, warmup=1, faster=2.0) and minutes == 7
    assert folder.name == "joint-small"


def test_training_together_needs_heads_to_begin_with(with_heads, capsys):
    assert command_line.main([*JOINT, "--start", "other"]) == 2
    assert "holds no checkpoint; run `python -m lessons_lib.training heads` first" in capsys.readouterr().err


def test_the_card_keeps_the_losses_of_a_joint_run_that_is_named(with_heads, at_home, capsys):
    export = ["heads-export", "--into", str(at_home / "heads"), "--joint", "small", "--nodes", "3"]
    assert command_line.main(export) == 2
    assert "run `python -m lessons_lib.training heads-joint` first" in capsys.readouterr().err
    assert command_line.main(JOINT) == command_line.main(export) == 0
    joint = json.loads((at_home / "heads" / CARD).read_text())["joint"]
    assert joint["recipe"]["rank"] == 2 and [row["step"] for row in joint["curve"]] == [1, 2, 3, 4]
    page = (at_home / "heads" / PAGE).read_text()
    assert "heads --run default --heads 2 --steps 5 --tokens 100 --rate 0.05 --warmup 1 --kept 20\n" in page
    assert "heads-export --run default --joint NAME\n" in page
    assert "`heads-joint --rank 2 --steps 4 --tokens 100 --warmup 1`, not stored" in page
    losses = [joint["curve"][step]["held_heads"] for step in (0, -1)]
    assert "weighted loss from {:.2f} to {:.2f}".format(*losses) in " ".join(page.split())


def test_the_card_goes_on_naming_what_earlier_cards_named(with_heads, at_home):
    export = ["heads-export", "--into", str(at_home / "heads"), "--nodes", "3"]
    for name in ("second", "third"):
        command_line.main(["heads", *SMALL, "--run", name])
    command_line.main(export)
    command_line.main([*export, "--run", "second", "--beside", "third"])
    first = json.loads((at_home / "heads" / CARD).read_text())
    command_line.main([*export, "--run", "third"])
    last = json.loads((at_home / "heads" / CARD).read_text())
    assert [row["name"] for row in first["tries"]] == ["default", "third"]
    assert [row["name"] for row in last["tries"]] == ["second", "default"]  # what is stored now was tried before
    assert last["tries"][0]["macro"] == first["after"]["macro"] and last["tries"][0]["recipe"] == first["recipe"]


def test_the_card_names_what_else_was_tried(with_heads, at_home, capsys):
    export = ["heads-export", "--into", str(at_home / "heads"), "--nodes", "3", "--beside", "other"]
    assert command_line.main(export) == 2 and "holds no checkpoint" in capsys.readouterr().err
    command_line.main(["heads", *SMALL, "--run", "other", "--anchor_rank", "2"])
    assert command_line.main(export) == 0
    card = json.loads((at_home / "heads" / CARD).read_text())
    assert [(of["name"], of["recipe"]["anchor_rank"], of["steps"]) for of in card["tries"]] == [("other", 2, 5)]
    assert card["recipe"]["anchor_rank"] == 0 and card["tries"][0]["accuracies"] != card["after"]["accuracies"]
    page = (at_home / "heads" / PAGE).read_text()
    assert "| other | 40 | --heads 2 --anchor_rank 2 --steps 5" in page
    assert "| as stored | 40 | --heads 2 --steps 5" in page
    assert f"| {card['tries'][0]['macro']:.2f} |" in page
    assert [row[:3] for row in tries(card, in_words)[1]] == [
        ["as stored", "40", "1 block, without the anchor, 5 steps at a rate of 0.05"],
        ["other", "40", "1 block, anchor by a map of rank 2, 5 steps at a rate of 0.05"],
    ]


def test_the_page_beside_the_stored_heads_is_that_of_their_card():
    folder = OURS / heads_commands.HEADS
    said = page_of(heads_commands.HEADS, read_card(folder), (folder / WEIGHTS).stat().st_size / 1e6)
    assert (folder / PAGE).read_text(encoding="utf-8") == said
    assert f"--kept {read_card(folder)['recipe']['kept']}" in said  # so its commands make heads that score as many
