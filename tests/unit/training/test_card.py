"""The card says what the run and the texts say, and the command line ties the parts together."""

import json
from dataclasses import replace

import pytest
import torch

from lessons_lib.measure.machine import device_name
from lessons_lib.models import tiny
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.models.stored_draft import CARD
from lessons_lib.training import __main__ as command_line
from lessons_lib.training import card, collect, distill, evaluate
from lessons_lib.training.batched import Text
from lessons_lib.training.checkpoint import runs
from lessons_lib.training.distill import Recipe

RECIPE = Recipe(layers=(1,), kept=40, steps=3, tokens=50, warmup=1, skip=1)


@pytest.fixture
def at_home(target, texts, tmp_path, monkeypatch):
    """A tiny target, its texts for training and for measuring, and a run named "main", all below tmp_path."""
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(command_line, "OURS", tmp_path)
    monkeypatch.setattr("lessons_lib.models.hub.OURS", tmp_path)
    monkeypatch.setattr(command_line, "target", lambda device="cpu": target)
    monkeypatch.setattr(command_line, "load", lambda *names, **options: type("Loaded", (), {"network": tiny()}))
    for held_out in (False, True):
        collect.folder(held_out).mkdir(parents=True)
        collect.save(texts, collect.folder(held_out) / "00000.safetensors")
    distill.distill(target, texts, RECIPE, runs(command_line.DRAFT, "main"), fast=False)
    (tmp_path / "smol-draft").mkdir()
    return tmp_path / "smol-draft"


@pytest.mark.parametrize("why", [ValueError, ModelUnavailable])
def test_what_stops_a_part_is_printed_and_its_status_is_two(monkeypatch, capsys, why):
    def stopped(options):
        raise why("no line to the registry")

    monkeypatch.setitem(command_line.COMMANDS, "bits", stopped)
    assert command_line.main(["bits", "--runs", "main"]) == 2
    assert capsys.readouterr().err == "no line to the registry\n"


def test_export_leaves_weights_a_card_and_a_page(at_home, texts):
    (collect.folder() / collect.TOOK).write_text('{"a machine": 120.0}')
    assert command_line.main(["evaluate", "--run", "main", "--log"]) == 0
    assert (
        command_line.main(
            ["export", "--run", "main", "--into", str(at_home.parent / "elsewhere"), "--note", "It rained."]
        )
        == 0
    )
    elsewhere = at_home.parent / "elsewhere"
    found = json.loads((elsewhere / CARD).read_text())
    assert found["recipe"]["kept"] == 40 and found["steps"] == 3 == len(found["curve"]) and found["texts"] == 10
    assert found["before"]["kinds"]["chat"]["texts"] == found["after"]["kinds"]["chat"]["texts"] == 10
    assert [design["name"] for design in found["designs"]] == ["main"]
    page = (elsewhere / card.PAGE).read_text()
    assert f"minutes on {device_name()}, collecting the texts 2 minutes on a machine." in page
    assert "\n10 texts that" in page and "layers 1," in page and "It rained." in page
    assert f"| after | {found['after']['kinds']['chat']['tokens_per_forward']:.2f}" in page


def test_the_card_says_what_the_untrained_draft_is_worth_and_what_the_stored_one(at_home, target, monkeypatch):
    drafts, evaluated = [], evaluate.evaluate

    def noting(draft, texts):
        drafts.append(draft)
        return evaluated(draft, texts) | {"number": len(drafts)}

    monkeypatch.setattr(evaluate, "evaluate", noting)
    assert command_line.main(["export", "--run", "main", "--into", str(at_home)]) == 0
    found = json.loads((at_home / CARD).read_text())
    assert (found["before"]["number"], found["after"]["number"]) == (1, 2)
    copied = [torch.allclose(draft.layers[0].qkv.weight.double(), target.layers[1].qkv.weight) for draft in drafts]
    assert copied == [True, False]


def test_a_design_that_is_logged_twice_stands_once(at_home):
    for _ in range(2):
        command_line.main(["evaluate", "--run", "main", "--log"])
    (design,) = command_line.tried()
    assert design["steps"] == 3 and design["recipe"] == json.loads(json.dumps(vars(replace(RECIPE))))


def test_a_run_that_is_not_there_is_one_sentence(at_home, capsys):
    assert command_line.main(["export", "--run", "other"]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


def test_a_time_that_nobody_kept_is_not_said():
    said = card.took({"hours": 0.5, "device": "", "collecting": {}})
    assert said == "Training took 30 minutes, collecting the texts a time that nobody kept."


def test_collecting_needs_to_know_what(capsys):
    assert command_line.main(["collect"]) == 2
    assert "--prompts FILE" in capsys.readouterr().err


def test_a_run_may_learn_from_greedy_or_drawn_texts_alone():
    texts = [Text("a", [1, 2], 1), Text("b", [1, 2], 1, 0.8)]
    named = lambda only: [text.key for text in command_line.written(texts, only)]  # noqa: E731
    assert named("") == ["a", "b"] and named("greedy") == ["a"] and named("drawn") == ["b"]
    for only, said in {"some": "choose greedy or drawn", "drawn": "no text is drawn"}.items():
        with pytest.raises(ValueError, match=said):
            command_line.written(texts[:1], only)
