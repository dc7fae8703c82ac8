"""The recipes of smol-layerskip by command: trained, evaluated, stored, and the card says what the evaluation found."""

import json
from types import SimpleNamespace
from zlib import crc32

import pytest
import torch
from safetensors.torch import load_file

from bench import train_layerskip
from lessons_lib.models import LanguageModel, exits, load_exit, read_card, tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.exits import fine_tune
from lessons_lib.training import __main__ as command_line
from lessons_lib.training import exit_adapter, layerskip, prompts
from lessons_lib.training.text_to_sql import encode, text_to_sql


class WholeWords:
    """A tokenizer of one token a word."""

    eos_token_id, pad_token_id, chat_template = 2, 0, ""

    def __call__(self, prompt):
        several = [prompt] if isinstance(prompt, str) else prompt
        ids = [[3 + crc32(word.encode()) % 94 for word in text.split()] for text in several]
        return SimpleNamespace(input_ids=ids[0] if isinstance(prompt, str) else ids)

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        return self(messages[0]["content"]).input_ids


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A tiny model under the target's name, and a cache below tmp_path."""

    def load(name=command_line.TARGET, device="cpu", dtype="auto"):
        network = tiny(dtype=torch.float32)
        network.generation_config.eos_token_id = 2
        return LanguageModel(network, WholeWords(), name, "cpu", torch.float32)

    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(command_line, "load", load)
    monkeypatch.setattr(layerskip, "EXITS", (1, 2))
    monkeypatch.setattr(command_line, "SIZES", {"train": 60, "validation": 10, "test": 20})
    return SimpleNamespace(folder=tmp_path, load=load)


def run(*arguments) -> None:
    assert command_line.main([*map(str, arguments)]) == 0


STEPS = "--steps 4 --tokens 200 --rate 0.01 --warmup 1 --device cpu".split()


def test_runs_are_trained_evaluated_and_stored(at_home, capsys, monkeypatch):
    results, into, merged = at_home.folder / "results", at_home.folder / "weights", at_home.folder / "raw.json"
    run("layerskip", *STEPS, "--minutes", "1e-9")
    assert "1 of 4 steps" in capsys.readouterr().out
    run("layerskip", *STEPS)
    run("layerskip", "--run", "control", "--p_max", 0, "--curriculum", "last", *STEPS)
    run("layerskip-exit", "--exit_layer", 1, "--prompts", 40, "--copies", 1, *STEPS)
    for name in ("base", "default", "control"):
        run("layerskip-evaluate", "--run", name, "--texts", 12, "--results", results, "--device", "cpu")
    run("layerskip-exit-evaluate", "--results", results, "--device", "cpu")
    run("layerskip-export", "--results", results, "--into", into, "--raw", merged)
    together = json.loads(merged.read_text())
    for name, file in (("base", "base"), ("layerskip", "default"), ("control", "control")):
        assert together[name] == json.loads((results / f"{file}.json").read_text())
    assert together["exit"] == json.loads((results / "exit.json").read_text())
    card, raw = read_card(into), json.loads((results / "default.json").read_text())
    assert (card["base"], card["rank"], card["steps"]) == (command_line.TARGET, 16, 4)
    assert [row["step"] for row in raw["curve"]] == [1, 2, 3, 4]
    # the stored weights are those that were evaluated
    network = at_home.load().network
    fine_tune(network, into)
    again = layerskip.evaluate_exits(Decoder.from_transformers(network), encode(WholeWords(), text_to_sql(12, "test")))
    for name in ("loss", "exact_match"):
        assert card["test"]["layerskip"][name] == pytest.approx(again[name], abs=0.02)
        assert raw["test"][name] == pytest.approx(again[name], abs=0.02)
    losses = [card["test"][name]["loss"][-1] for name in ("base", "layerskip", "control")]
    assert len(set(losses)) == 3 and losses[0] > max(losses[1:])
    assert card["quality"] == together["quality"] and card["quality"]["texts"] == 12
    found = card["exit"]
    assert found["texts"] + found["after"]["texts"] == 40 and "curve" not in found
    assert found["after"]["kl"] < found["before"]["kl"]
    weights = load_file(results / "exit.safetensors")
    monkeypatch.setattr(exits, "LAYERSKIP", into)
    for key, weight in load_exit(at_home.load()).named_parameters():
        assert torch.equal(weight, weights[key].bfloat16().float())


def test_an_evaluation_that_is_missing_is_one_sentence(at_home, capsys):
    assert command_line.main(["layerskip-export", "--results", str(at_home.folder)]) == 2
    assert "base.json is missing; run `python -m bench.train_layerskip` first" in capsys.readouterr().err


def test_a_run_is_evaluated_at_its_end_alone(at_home, capsys):
    results = at_home.folder / "results"
    run("layerskip", *STEPS, "--minutes", "1e-9")
    run("layerskip-exit", "--exit_layer", 1, "--prompts", 40, "--copies", 1, *STEPS, "--minutes", "1e-9")
    for command in ("layerskip-evaluate", "layerskip-exit-evaluate"):
        assert command_line.main([command, "--results", str(results), "--device", "cpu"]) == 2
        assert "run default has taken 1 of 4 steps; train it to its end first" in capsys.readouterr().err
    assert not results.exists()


def test_a_control_of_another_rate_is_refused(tmp_path, capsys):
    recipe = {"rate": 0.1, "p_max": 0.1, "curriculum": "rotational"}
    control = recipe | {"rate": 0.2, "p_max": 0.0, "curriculum": "last"}
    for name, of in {"base": {}, "default": recipe, "control": control, "exit": {}}.items():
        command_line.write_json({"recipe": of}, tmp_path / f"{name}.json")
    assert command_line.main(["layerskip-export", "--results", str(tmp_path), "--into", str(tmp_path / "weights")]) == 2
    said = capsys.readouterr().err
    assert "train run control with run default's options, all but p_max and curriculum" in said


def test_an_exit_reads_as_many_prompts_as_its_recipe_says(at_home, monkeypatch, capsys):
    asked, write = [], exit_adapter.own_texts
    monkeypatch.setattr(exit_adapter, "own_texts", lambda *given: asked.append(given[1]) or write(*given))
    run("layerskip-exit", "--exit_layer", 1, "--prompts", 24, "--copies", 1, *STEPS)
    assert len(asked[0]) == 24 and asked[0][-1] in prompts.own()[-1040 // 24 :]  # of all topics
    for wrong in ("0", "2000"):
        assert command_line.main(["layerskip-exit", "--run", "other", "--prompts", wrong, "--device", "cpu"]) == 2
        assert f"prompts={wrong} is no number of our prompts; choose from 1 to 1040" in capsys.readouterr().err


def test_the_bench_trains_and_evaluates_every_run(monkeypatch):
    given = []
    monkeypatch.setattr(train_layerskip, "training", lambda command: given.append(command) or 0)
    assert train_layerskip.main(["--out", "results"]) == 0
    parsed = [command_line.parser().parse_args(command) for command in given]
    assert [(command[0], options.run) for command, options in zip(given, parsed, strict=True)] == [
        ("layerskip-evaluate", "base"),
        ("layerskip", "default"),
        ("layerskip-evaluate", "default"),
        ("layerskip", "control"),
        ("layerskip-evaluate", "control"),
        ("layerskip-exit", "exit"),
        ("layerskip-exit-evaluate", "exit"),
    ]
    assert (parsed[1].p_max, parsed[1].curriculum) == (0.1, "rotational")
    assert (parsed[3].p_max, parsed[3].curriculum) == (0.0, "last")


def test_what_follows_a_training_that_was_stopped_or_refused_is_not_run(monkeypatch):
    given = []
    monkeypatch.setattr(train_layerskip, "training", lambda command: given.append(command[0]) or 130)
    assert train_layerskip.main(["--out", "results", "default", "control"]) == 130
    assert given == ["layerskip"]
