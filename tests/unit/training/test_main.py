"""The command line ties the parts together: what is stored is what was trained, and its card says what it is worth."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from lessons_lib.decoding.proposers.tree_shape import TreeShape
from lessons_lib.models import read_card, tiny
from lessons_lib.models.draft import load_draft
from lessons_lib.models.medusa import load_heads
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.training import __main__ as command_line
from lessons_lib.training import collect, evaluate, medusa
from lessons_lib.training.loop import CURVE, folder_of
from lessons_lib.training.medusa import judge, split

DISTILL = "distill --run main --layers 1 --kept 40 --steps 3 --tokens 50 --warmup 1 --skip 1 --device cpu".split()

HEADS = "heads --heads 2 --steps 5 --tokens 100 --rate 0.05 --warmup 1 --kept 20 --device cpu".split()

JOINT = "heads-joint --run small --rank 2 --steps 4 --tokens 100 --warmup 1 --device cpu".split()


@pytest.fixture
def at_home(model, target, texts, tmp_path, monkeypatch):
    """A tiny model under the target's name, its texts for training and for measuring, all below tmp_path."""
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "cache"))
    named = replace(model, name=command_line.TARGET)
    monkeypatch.setattr(command_line, "load", lambda name, device="cpu", dtype="auto": named)
    monkeypatch.setattr(command_line, "NODES", 6)
    several = [replace(text, key=f"chat/{n}-{text.key}") for n in range(4) for text in texts]
    for held_out, some in ((False, several), (True, texts)):
        collect.folder(held_out).mkdir(parents=True)
        collect.save(some, collect.folder(held_out) / "00000.safetensors")
    return tmp_path


def run(*arguments) -> None:
    assert command_line.main([*map(str, arguments)]) == 0


def test_a_draft_is_distilled_and_stored_with_what_it_is_worth_before_and_after(at_home, texts, capsys):
    run(*DISTILL)
    run("evaluate", "--run", "main")
    assert "3 of 3 steps" in (said := capsys.readouterr().out) and '"macro"' in said
    run("export", "--run", "main", "--into", at_home / "draft")
    card = read_card(at_home / "draft")
    assert card["recipe"]["layers"] == [1] and card["steps"] == 3 == len(card["curve"]) and card["texts"] == 40
    network = load_draft(at_home / "draft", tiny())
    stored = evaluate.evaluate(command_line.decoder_of(network), texts)
    assert card["after"] == json.loads(json.dumps(stored)) and card["before"]["kinds"]["chat"]["texts"] == 10


def test_heads_are_trained_judged_and_stored_by_commands(at_home, model, texts, capsys):
    run(*HEADS)
    assert '"step": 5' in capsys.readouterr().out
    run("heads-export", "--into", at_home / "heads")
    card = read_card(at_home / "heads")
    assert (card["base"], card["count"], card["steps"], card["texts"]) == (command_line.TARGET, 2, 5, 40)
    assert card["recipe"]["tokens"] == 100 and [row["step"] for row in card["curve"]] == [5]
    stored = load_heads(at_home / "heads", command_line.model())
    used = Counter(token for text in collect.training_texts() for token in text.ids)
    assert sum(used[token] for token in stored.kept.tolist()) == sum(count for _, count in used.most_common(20))
    tree = TreeShape.of(card["after"]["choices"])
    accuracies = judge(stored, split(collect.training_texts())[1])["accuracies"]
    assert card["after"]["accuracies"] == accuracies != card["before"]["accuracies"]
    assert card["after"]["macro"] == evaluate.evaluate_heads(stored, texts, tree)["macro"]
    assert card["after"]["expected"] == pytest.approx(tree.expected_tokens(accuracies)) and card["after"]["nodes"] == 6


def test_the_tree_is_chosen_by_greedy_texts_that_neither_train_nor_measure(at_home, texts, monkeypatch):
    seen = []
    monkeypatch.setattr(command_line, "judge", lambda heads, texts: seen.extend(texts) or judge(heads, texts))
    sampled = [replace(text, key=f"qa/0-{text.key}", temperature=0.8) for text in texts]  # held back as chat/0-... are
    collect.save(sampled, collect.folder() / "00001.safetensors")
    run(*HEADS)
    run("heads-evaluate")
    training, held = split(collect.training_texts())
    keys = {text.key for text in seen}
    assert keys == {text.key for text in held if text.temperature == 0} < {text.key for text in held} and keys
    assert not keys & {text.key for text in training} and not keys & {text.key for text in collect.held_out_texts()}


def test_heads_and_model_are_trained_together_by_a_command_that_goes_on_where_it_stopped(at_home, capsys):
    run(*HEADS)
    run(*JOINT, "--minutes", "1e-9")
    assert "1 of 4 steps" in capsys.readouterr().out
    run(*JOINT)
    curve = json.loads((folder_of(command_line.JOINT, "small") / CURVE).read_text())
    assert [row["step"] for row in curve] == [1, 2, 3, 4] and "held_kl" in curve[-1]
    assert all(row["loss"] == pytest.approx(row["kl"] + 0.2 * row["heads"], abs=1e-4) for row in curve)
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-3) and curve[-1]["kl"] > 0  # the model moves


def test_a_joint_run_is_looked_at_on_texts_of_all_kinds(at_home, texts, monkeypatch):
    seen, train = [], medusa.train_joint
    monkeypatch.setattr(command_line, "LOOKED_AT", 4)
    monkeypatch.setattr(medusa, "train_joint", lambda *given: seen.extend(given[-1]) or train(*given))
    sums = [replace(text, key=f"math/0-{text.key}") for text in texts]  # held back as chat/0-... are
    collect.save(sums, collect.folder() / "00001.safetensors")
    run(*HEADS)
    run(*JOINT)
    assert Counter(text.key.partition("/")[0] for text in seen) == {"chat": 2, "math": 2}
    assert command_line.spread("abcdefg", 3) == ["a", "c", "e"] and command_line.spread([], 0) == []


@pytest.mark.parametrize(("why", "status"), [(ValueError, 2), (ModelUnavailable, 2), (KeyboardInterrupt, 130)])
def test_what_stops_a_part_is_printed_and_gives_its_status(monkeypatch, capsys, why, status):
    def stopped(options):
        raise why("no line to the registry")

    monkeypatch.setattr(command_line, "run_evaluate", stopped)
    assert command_line.main(["evaluate", "--run", "main"]) == status
    assert capsys.readouterr().err.lstrip("\n") == "no line to the registry\n"


@pytest.mark.parametrize("part", ["export", "heads-evaluate", "heads-joint"])
def test_a_run_that_is_not_there_is_one_sentence(at_home, capsys, part):
    assert command_line.main([part]) == 2
    assert "holds no checkpoint; run `python -m lessons_lib.training" in capsys.readouterr().err
