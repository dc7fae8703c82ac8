"""Naming the machine: what a lesson prints first, and what is stored beside numbers."""

import contextlib
import itertools
import json
import os
import platform

import pytest
import torch

from lessons_lib.measure import machine


def test_the_environment_names_what_decides_about_speed():
    text = machine.environment("cpu", torch.bfloat16)
    for part in (
        machine.cpu_name(),
        torch.__version__.split("+")[0],  # a build has a tag, its package on the disk may have none
        f"{torch.get_num_threads()} threads",
        "transformers",
        "bfloat16",
    ):
        assert part in text
    assert "torch.bfloat16" not in text and "dtype" not in machine.environment("cpu")


@pytest.fixture
def procfs(monkeypatch):
    """Sets what /proc/stat says at each reading, in hundredths of a second: user, nice, system, idle, ...; None: no
    such file. Ten seconds pass between two readings, of which this process works one."""

    def say(*lines):
        told, seconds, own = iter(lines), itertools.count(0, 10), itertools.count()

        def read(path):
            line = next(told)
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


def test_a_lesson_begins_with_the_warning_on_a_busy_machine_only(monkeypatch):
    for used, expected in ((1.7, "Other programs use 1.7 of"), (0.0, "")):
        monkeypatch.setattr(machine, "used_by_others", lambda used=used: used)
        monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
        assert expected in machine.environment() and ("Other programs" in machine.environment()) == bool(used)


def test_a_system_without_load_averages_is_fine(monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    assert machine.load() is None
    assert "unknown" in machine.environment()


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
