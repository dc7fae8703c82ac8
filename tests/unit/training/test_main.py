"""The command line ties the parts together: what is stored is what was trained, and its card says what it is worth."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from lessons_lib.decoding.proposers.medusa import load_heads
from lessons_lib.decoding.proposers.tree_shape import TreeShape
from lessons_lib.models import read_card, tiny
from lessons_lib.models.draft import load_draft
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.training import __main__ as command_line
from lessons_lib.training import collect, evaluate
from lessons_lib.training.medusa import judge, split

DISTILL = "distill --run main --layers 1 --kept 40 --steps 3 --tokens 50 --warmup 1 --skip 1 --device cpu".split()

HEADS = "heads --heads 2 --steps 5 --tokens 100 --rate 0.05 --warmup 1 --kept 20 --device cpu".split()


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


@pytest.mark.parametrize(
    ("why", "status", "said"),
    [
        (ValueError, 2, "no line"),
        (ModelUnavailable, 2, "no line"),
        (KeyboardInterrupt, 130, "stopped; training and collecting go on"),
    ],
)
def test_what_stops_a_part_is_printed_and_gives_its_status(monkeypatch, capsys, why, status, said):
    def stopped(options):
        raise why("no line to the registry")

    monkeypatch.setattr(command_line, "run_evaluate", stopped)
    assert command_line.main(["evaluate", "--run", "main"]) == status
    assert capsys.readouterr().err.lstrip("\n").startswith(said)


@pytest.mark.parametrize("part", ["export", "heads-evaluate"])
def test_a_run_that_is_not_there_is_one_sentence(at_home, capsys, part):
    assert command_line.main([part]) == 2
    assert "holds no checkpoint; train this run with `python -m lessons_lib.training`" in capsys.readouterr().err
