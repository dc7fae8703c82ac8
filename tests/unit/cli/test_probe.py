"""`lessons probe`: rates of this machine, and what they allow a model."""

import os

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lessons_lib import cli
from lessons_lib.measure import machine
from lessons_lib.models import load, tiny


@pytest.fixture
def rates(monkeypatch):
    """A machine that reads 8 GB/s and multiplies in no time; the rates that were kept for the lessons."""
    found = machine.Hardware("cpu", "some CPU", 2, 8e9, 8e9, {"fp32": 6e9, "bf16": 7e9}, {"fp32": 1e15, "bf16": 1e15})
    monkeypatch.setattr(machine, "measure", lambda device, dtypes: found)
    monkeypatch.setattr(machine, "used_by_others", lambda: 0.75 * os.cpu_count())
    kept = []
    monkeypatch.setattr(machine, "_keep", lambda path, measured: kept.append(measured))
    return kept


def test_probe_names_the_machine_its_rates_and_the_most_tokens_per_second_of_a_model(rates, tmp_path, capsys):
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tiny(2, torch.float32).save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(tmp_path)
    assert cli.main(["probe", "--model", str(tmp_path), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    weights = load(str(tmp_path), "cpu", "fp32").shape.weights
    assert f"in fp32: at most {8e9 / (4 * weights):.3g} tokens/s" in said and "8.0 GB/s" in said
    assert f"in bf16: at most {8e9 / (2 * weights):.3g} tokens/s" in said and "Other programs use" in said


@pytest.mark.parametrize("used", [0.0, 1.5])
def test_probe_keeps_no_rates_of_a_busy_machine_for_the_lessons(rates, monkeypatch, used):
    monkeypatch.setattr(machine, "used_by_others", lambda: used * os.cpu_count())
    assert cli.main(["probe"]) == 0
    assert bool(rates) == (used == 0.0)


def test_probe_needs_no_weights_of_a_known_model_and_refuses_an_unknown_one(rates, capsys):
    assert cli.main(["probe"]) == 0
    assert "smollm2-135m in fp32: at most 14.9 tokens/s" in capsys.readouterr().out
    assert cli.main(["probe", "--model", "no-such-model"]) == 2
    assert "smollm2-135m" in capsys.readouterr().err
