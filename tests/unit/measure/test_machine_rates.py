"""The hardware probe: what it keeps, when it measures again, and what it prints. No rate is asserted, only sense."""

import dataclasses
import json

import pytest
import torch

from lessons_lib.measure import clock, cost, machine
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.machine import Hardware, probe

SOME = Hardware("cpu", "some CPU", 2, 30e9, 32e9, {"fp32": 20e9, "bf16": 25e9}, {"fp32": 100e9, "bf16": 250e9}, 0.5)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Calls to `measure`, which gives SOME's numbers for the dtypes asked for; an empty cache folder."""
    calls = []

    def measure(device, dtypes):
        calls.append(list(dtypes))
        rates = {name: 1e9 for name in dtypes}
        curves = {name: {1: 1.0, 16: 1.5} for name in dtypes}
        return dataclasses.replace(SOME, matvec_bandwidth=rates, matmul_flops=rates, widths=curves)

    monkeypatch.setattr(machine, "measure", measure)
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "cache"))
    return calls


def test_a_machine_is_measured_once(measured):
    assert probe() == probe() and len(measured) == 1


def test_what_was_stored_before_width_curves_were_measured_is_measured_again(measured, tmp_path):
    probe()
    (stored,) = (tmp_path / "cache" / "hardware").iterdir()
    old = json.loads(stored.read_text())
    stored.write_text(json.dumps({name: value for name, value in old.items() if name != "widths"}))
    assert probe().widths["bf16"] == {1: 1.0, 16: 1.5} and len(measured) == 2


def test_a_width_curve_is_relative_to_one_row_and_stops_within_its_budget(monkeypatch):
    def per_row(fn, *_):
        return 0.1 * len(fn())

    monkeypatch.setattr(machine, "best", per_row)
    monkeypatch.setattr(machine, "buffer_bytes", lambda device: 2**20)
    assert machine.widths("cpu", "fp32") == pytest.approx({1: 1, 2: 2, 4: 4})  # 8 rows would take 0.8 s of 0.5


def test_refresh_measures_again(measured):
    probe()
    probe(refresh=True)
    assert len(measured) == 2


def test_a_missing_dtype_is_measured_beside_those_known(measured):
    probe(dtypes=["fp32"])
    assert set(probe(dtypes=["bf16"]).matmul_flops) == {"fp32", "bf16"}
    probe(dtypes=["fp32", "bf16"])
    assert measured == [["fp32"], ["bf16", "fp32"]]


def test_another_number_of_threads_is_another_machine(measured, monkeypatch):
    probe()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    probe()
    assert len(measured) == 2


def test_a_cache_that_cannot_be_written_costs_only_the_next_probe(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "file"))
    assert probe().name == probe().name == "some CPU"
    assert len(measured) == 2


def test_a_failed_move_leaves_no_partial_file(measured, monkeypatch, tmp_path):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(machine.os, "replace", full)
    assert probe().name == "some CPU"
    assert list((tmp_path / "cache" / "hardware").iterdir()) == []


def test_a_damaged_result_is_measured_again(measured, tmp_path):
    probe()
    (stored,) = (tmp_path / "cache" / "hardware").iterdir()
    for text in ("{", '{"other": 1}', "[]"):
        stored.write_text(text)
        probe()
    assert len(measured) == 4 and json.loads(stored.read_text())["name"] == "some CPU"


def test_an_unknown_dtype_is_refused_with_the_choices(measured):
    with pytest.raises(ValueError, match="Cannot measure int3; choose from fp32, bf16, fp16, fp64"):
        probe(dtypes=["int3"])


def test_hardware_prints_rates_with_units_and_ridge():
    text = str(SOME)
    assert "30.0 GB/s" in text and "250 GFLOP/s" in text and text.splitlines()[-1].endswith("10.0")
    assert "bf16: v(1) 1.00, v(16) 1.50" in str(dataclasses.replace(SOME, widths={"bf16": {1: 1.0, 16: 1.5}}))
    assert SOME.ridge("fp32") == 5


def test_a_real_measurement_gives_positive_rates_for_every_dtype(monkeypatch):
    monkeypatch.setattr(machine, "BUDGET", 1e-3)
    monkeypatch.setattr(machine, "buffer_bytes", lambda device: 2**22)
    found = machine.measure("cpu", ["fp32", "fp64"])
    rates = [found.copy_bandwidth, found.read_bandwidth, *found.matvec_bandwidth.values(), *found.matmul_flops.values()]
    assert len(rates) == 6 and min(rates) > 0 and found.widths["fp64"][1] == 1


def test_what_the_probe_keeps_is_the_best_of_all_runs_in_a_quick_run_too(monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_QUICK", "1")
    runs = []
    machine.best(lambda: runs.append(1), "cpu", repeats=5)
    assert len(runs) == 2 + 5


def test_copying_counts_reads_and_writes_and_products_count_two_per_multiply_add(monkeypatch):
    monkeypatch.setattr(machine, "best", lambda fn, *_: fn() is not None and 2.0)
    monkeypatch.setattr(machine, "buffer_bytes", lambda device: 2**20)
    assert machine.streams("cpu") == (2**19, 2**19)  # half a MiB read and half written, a MiB read: in 2 s
    assert machine.matvec("cpu", "bf16") == 2**19
    assert machine.matmul("cpu", "fp32") == 256**3  # 2·n³ FLOPs in 2 s


def test_buffers_are_eight_caches_large_but_never_beyond_the_cap(monkeypatch):
    for cache, expected in ((2**20, 256), (48 * 2**20, 384), (2**30, 512)):
        monkeypatch.setattr(machine, "cache_bytes", lambda device, cache=cache: cache)
        assert machine.buffer_bytes("cpu") == expected * 2**20


def test_the_products_of_a_shape_are_its_layers_in_turn_and_its_head(monkeypatch):
    made, linear = [], torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w: made.append((len(x), w.numel())) or linear(x, w))
    monkeypatch.setattr(machine, "best", lambda fn, device: fn() is not None or 1.0)
    shape = ModelConfig("x", 2, 32, 4, 2, 8, 64, 100, 64)
    assert machine.linears(shape, "fp32", "cpu", rows=8, head_rows=3) == 2.0  # layers 1 s, head 1 s
    assert {rows for rows, _ in made[:-1]} == {8} and made[-1] == (3, shape.head_weights)
    assert sum(size for _, size in made[:-1]) == shape.layer_weights


def test_the_cost_of_a_width_is_its_median_time_over_that_of_one_row():
    curve = {1: clock.Samples((1.0, 1.25, 9.0)), 4: clock.Samples((2.0, 2.0, 3.0))}
    assert cost.width_curve(curve) == {1: 1.0, 4: 1.6}


@pytest.mark.parametrize("device, bf16, expected", [
    ("cpu", False, ("fp32", "bf16")),
    ("cuda", True, ("fp32", "bf16", "fp16")),
    ("cuda:1", False, ("fp32", "fp16")),
])  # fmt: skip
def test_a_gpu_is_measured_in_bf16_only_where_it_has_it(monkeypatch, measured, device, bf16, expected):
    asked = []
    monkeypatch.setattr(machine, "gpu_bf16", lambda device: asked.append(device) or bf16)
    monkeypatch.setattr(machine, "device_name", lambda device: "some device")
    assert machine.default_dtypes(device) == expected
    probe(device)
    assert measured == [list(expected)] and set(asked) <= {device} - {"cpu"}
