"""This machine: what is stored beside numbers, what disturbs them, and what the probe keeps. No rate is asserted."""

import contextlib
import dataclasses
import itertools
import json
import platform

import pytest
import torch

from lessons_lib.measure import machine
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.machine import Hardware, probe


@pytest.fixture
def procfs(monkeypatch):
    """Sets what /proc/stat says at each reading, in hundredths of a second: user, nice, system, idle, ...; None: no
    such file. Ten seconds pass between two readings, of which this process works one."""

    def say(*lines):
        given, seconds, own = iter(lines), itertools.count(0, 10), itertools.count()

        def read(path):
            line = next(given)
            if line is None:
                raise OSError("no such file")
            return f"cpu  {line}\ncpu0 1 2 3"

        monkeypatch.setattr(machine.Path, "read_text", read)
        monkeypatch.setattr(machine.os, "sysconf", lambda name: 100, raising=False)
        monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
        monkeypatch.setattr(machine.time, "perf_counter", lambda: next(seconds))
        monkeypatch.setattr(machine.time, "process_time", lambda: next(own))
        monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)

    return say


def test_cores_that_other_programs_use_are_counted_without_waiting_time_and_without_this_process(procfs):
    # in these ten seconds: 8 s user, 1 s nice, 2 s system, 0.5 + 0.5 s interrupts; 7 s idle; 1 s taken by the host
    procfs("100 10 50 900 40 0 5 0 0 0", "900 110 250 1600 340 50 55 100 0 0")
    assert machine.used_by_others() == pytest.approx((8 + 1 + 2 + 0.5 + 0.5 - 1) / 10)


def test_a_warning_says_how_much_of_the_machine_other_programs_use(procfs):
    procfs("0 0 0 0 0 0 0 0", "1100 0 0 900 0 0 0 0")
    assert machine.busy_warning().startswith("Other programs use 1.0 of this machine's 2 cores: ")
    procfs("0 0 0 0 0 0 0 0", "400 0 0 1600 0 0 0 0")  # 0.3 of two cores: a browser in the background
    assert machine.busy_warning() == ""


def test_without_proc_nobody_knows_what_other_programs_use(procfs):
    procfs(None, None)
    assert machine.used_by_others() is None and machine.busy_warning() == ""


@pytest.mark.parametrize(
    "device, native, expected", [("cuda:0", True, True), ("cuda", False, False), ("mps", True, False)]
)
def test_a_gpu_has_bf16_where_it_need_not_emulate_it(monkeypatch, device, native, expected):
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert machine.gpu_bf16(torch.device(device)) is expected


def test_the_stored_host_is_json_and_keeps_the_network_name_out(monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "name-in-the-network")
    stored = json.dumps(machine.host())
    assert machine.cpu_name() in stored and "name-in-the-network" not in stored


def test_a_system_without_cpuinfo_still_has_a_name_and_a_cache_size(monkeypatch):
    def missing(*_, **__):
        raise OSError("no such file")

    monkeypatch.setattr(machine.Path, "read_text", missing)
    monkeypatch.setattr(machine.Path, "glob", lambda *_: iter(()))
    assert machine.cpu_name() and machine.cache_bytes() == 32 * 2**20


def test_waiting_ends_once_the_machine_is_quiet_or_with_the_warning(monkeypatch):
    warnings = iter(["busy", "busy", "", "never asked"])
    monkeypatch.setattr(machine, "busy_warning", lambda: next(warnings))
    assert machine.wait_until_quiet(patience=1.0, pause=0.01) == ""
    assert list(warnings) == ["never asked"]
    monkeypatch.setattr(machine, "busy_warning", lambda: "busy")
    assert machine.wait_until_quiet(patience=0.02, pause=0.01) == "busy"


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


def test_a_width_curve_is_relative_to_one_row_and_stops_within_its_budget(monkeypatch):
    def per_row(fn, *_):
        return 0.1 * len(fn())

    monkeypatch.setattr(machine, "best", per_row)
    monkeypatch.setattr(machine, "buffer_bytes", lambda device: 2**20)
    assert machine.widths("cpu", "fp32") == pytest.approx({1: 1, 2: 2, 4: 4})  # 8 rows would take 0.8 s of 0.5


def test_a_missing_dtype_is_measured_beside_those_known(measured):
    probe(dtypes=["fp32"])
    assert set(probe(dtypes=["bf16"]).matmul_flops) == {"fp32", "bf16"}
    probe(dtypes=["fp32", "bf16"])
    assert measured == [["fp32"], ["bf16", "fp32"]]


def test_a_cache_that_cannot_be_written_costs_only_the_next_probe(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "file"))
    assert probe().name == probe().name == "some CPU"
    assert len(measured) == 2


def test_a_damaged_result_is_measured_again(measured, tmp_path):
    probe()
    (stored,) = (tmp_path / "cache" / "hardware").iterdir()
    for text in ("{", '{"other": 1}', "[]"):
        stored.write_text(text)
        probe()
    assert len(measured) == 4 and json.loads(stored.read_text())["name"] == "some CPU"


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


@pytest.mark.parametrize("head_rows", [None, 40])
def test_the_products_of_a_shape_are_its_layers_in_turn_and_its_head(monkeypatch, head_rows):
    made, linear = [], torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w: made.append((len(x), w.numel())) or linear(x, w))
    monkeypatch.setattr(machine, "best", lambda fn, device: fn() is not None or 1.0)
    shape = ModelConfig("x", 2, 32, 4, 2, 8, 64, 100, 64, head_rows=head_rows)
    assert machine.linears(shape, "fp32", "cpu", rows=8, head_rows=3) == 2.0  # layers 1 s, head 1 s
    assert {rows for rows, _ in made[:-1]} == {8} and made[-1] == (3, shape.head_weights)
    assert sum(size for _, size in made[:-1]) == shape.layer_weights


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


def test_a_format_that_it_cannot_measure_is_refused_at_once(measured):
    with pytest.raises(ValueError, match="Cannot measure float32; choose from"):
        probe(dtypes=["float32"])
    assert not measured
