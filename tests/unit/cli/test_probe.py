"""`lessons probe`: rates of this machine, and what they allow a model."""

import os
from dataclasses import replace

import pytest
import torch

from lessons_lib import cli, load
from lessons_lib.cli import probe
from lessons_lib.measure import machine, tables
from lessons_lib.measure.config import ModelConfig


@pytest.fixture
def rates(monkeypatch):
    """A machine that reads 8 GB/s and multiplies in no time; the rates that were kept for the lessons."""
    found = machine.Hardware("cpu", "some CPU", 2, 8e9, 8e9, {"fp32": 6e9, "bf16": 7e9}, {"fp32": 1e15, "bf16": 1e15})
    monkeypatch.setattr(machine, "measure", lambda device, dtypes: found)
    monkeypatch.setattr(machine, "used_by_others", lambda: 0.75 * os.cpu_count())
    kept = []
    monkeypatch.setattr(machine, "_keep", lambda path, measured: kept.append(measured))
    return kept


def test_it_names_machine_rates_limits_and_the_room_of_each_technique(rates, checkpoints, capsys):
    folder = str(checkpoints / "llama")
    assert cli.main(["probe", "--model", folder, "--device", "cpu", "--dtype", "fp32"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    shape = load(folder, "cpu", "fp32").shape
    for name, each in (("fp32", 4), ("W4A16", 0.625)):
        read = each * shape.weights + 4 * shape.kv_elements(256)  # the cache stays in fp32
        assert f"{name} {read / 1e6:.3g} MB {8e9 / read:,.0f}" in said
    assert "llama after 256 tokens, weights in" in said and "8.0 GB/s" in said and "Other programs use" in said
    assert "llama in fp32, measured after 256 tokens: a forward pass over one token takes" in said
    assert "v(1) 1.00, v(2)" in said and "v(16)" in said
    assert all(f"{name} " in said for name in ("compiling", "the same in W8A16", "drafting", "batching"))
    assert "drafting and quantized weights with `lessons compare`, batching with `lessons serve`" in said


@pytest.mark.parametrize("used", [0.0, 1.5])
def test_it_keeps_no_rates_of_a_busy_machine_for_the_lessons(rates, monkeypatch, used):
    monkeypatch.setattr(machine, "used_by_others", lambda: used * os.cpu_count())
    assert cli.main(["probe", "--model", "llama-2-7b", "--device", "cpu"]) == 0
    assert bool(rates) == (used == 0.0)


def test_no_memory_left_to_measure_the_machine_is_said_in_a_sentence(rates, monkeypatch, capsys):
    def full(device, dtypes):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(machine, "measure", full)
    assert cli.main(["probe", "--model", "llama-2-7b", "--device", "cpu"]) == 2
    assert "does not fit into this device's memory" in capsys.readouterr().err


@pytest.mark.usefixtures("no_network")
def test_a_known_shape_needs_no_weights(rates, capsys):
    """6.6e9 weights of 4 bytes, as the rates say 6 GB/s."""
    assert cli.main(["probe", "--model", "llama-2-7b", "--device", "cpu", "--dtype", "fp32"]) == 0
    said = capsys.readouterr().out
    assert "llama-2-7b in fp32, predicted from its shape: a forward pass over one token takes 4.4e+03 ms" in said


def test_a_model_without_attention_is_refused_with_the_command_that_takes_it(rates, checkpoints, capsys):
    assert cli.main(["probe", "--model", str(checkpoints / "mamba"), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "predicts from the sizes of attention layers" in said and "(mamba) has none" in said
    assert "`lessons compare` measures any causal model" in said and "ModelConfig" not in said


def test_the_room_by_hand():
    """1,000 weights of 2 bytes and no cache: 2 us at 1 GB/s, of a step of 10 us."""
    shape = ModelConfig("toy", 1, 10, 1, 1, 0, 1, 97, 0, gated=False)
    assert shape.weights == 2 * 10 + 970
    hardware = machine.Hardware("cpu", "", 1, 1e9, 1e9, {"bf16": 1e9}, {"bf16": 1e15})
    headings, cells = probe.room(shape, hardware, "bf16", 9.9e-6, {1: 1.0, 2: 1.25, 4: 1.6, 8: 4.0})
    gains = {name: float(gain.split()[0]) for name, gain, *_ in cells}
    assert gains == {"compiling": 5.0, "the same in W8A16": 10.0, "the same in W4A16": 16.0,
                     "drafting": 2.5, "batching": 2.5}  # fmt: skip
    assert "all of 3 draft tokens were accepted" in cells[3][3] and cells[4][3] == "tokens/s of 4 sequences together"
    assert cells[4][2] == tables.number(2.5 / 9.9e-6)
    assert cells[1][3] == "and a weight took 1 byte" and "alpha" not in cells[3][3]
    assert probe.room(shape, replace(hardware, device="cuda"), "bf16", 1e-5, {1: 1.0})[1][0][0].endswith("CUDA graph")


def test_where_wider_passes_cost_more_than_they_yield_drafting_has_no_room():
    shape = ModelConfig("toy", 1, 10, 1, 1, 0, 1, 97, 0, gated=False)
    hardware = machine.Hardware("cpu", "", 1, 1e9, 1e9, {"bf16": 1e9}, {"bf16": 1e15})
    _, cells = probe.room(shape, hardware, "bf16", 1e-5, {1: 1.0, 2: 2.5, 4: 6.0})
    assert cells[3][1:] == ["1.00 x", "100,000", "a wider pass costs more than it could yield"]


def test_the_installed_command_probes_a_known_shape_and_a_model_with_weights(lessons, checkpoints, tmp_path):
    how = "--device", "cpu", "--dtype", "fp32"
    for model, said in (
        ("opt-1.3b", "opt-1.3b in fp32, predicted from its shape"),
        (checkpoints / "gpt2", "gpt2 in fp32, measured after 256 tokens"),
    ):
        done = lessons("probe", "--model", model, *how, LESSONS_LIB_CACHE=str(tmp_path))  # not the lessons' rates
        assert done.returncode == 0 and said in done.stdout, done.stderr
