"""Naming the machine: what a lesson prints first, and what is stored beside numbers."""

import contextlib
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


def test_a_machine_is_loaded_above_the_given_share_of_its_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.load_warning(4.0) == machine.load_warning(2.0, share=0.5) == machine.load_warning(None) == ""
    assert "4 cores (4.1): expect slow and noisy times" in machine.load_warning(4.1)
    assert "4 cores (2.1)" in machine.load_warning(2.1, share=0.5)


@pytest.mark.parametrize(
    "device, native, expected", [("cuda:0", True, True), ("cuda", False, False), ("mps", True, False)]
)
def test_a_gpu_has_bf16_where_it_need_not_emulate_it(monkeypatch, device, native, expected):
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert machine.gpu_bf16(torch.device(device)) is expected


def test_a_busy_machine_says_so(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0, 0))
    assert "expect slow and noisy times" in machine.environment()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0, 0))
    assert "expect slow and noisy times" not in machine.environment()


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


def test_a_machine_settles_once_what_ran_before_has_left_the_average(monkeypatch):
    loads = iter([9.0, 1.6, 1.5])  # of two cores: a lesson's own load must have room
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine, "load", lambda: next(loads))
    assert machine.settled(patience=1.0, pause=0.01)
    assert list(loads) == []
    monkeypatch.setattr(machine, "load", lambda: 9.0)
    assert not machine.settled(patience=0.02, pause=0.01)
