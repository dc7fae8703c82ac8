"""Naming the machine: what a lesson prints first, and what is stored beside numbers."""

import json
import os
import platform

import torch

from lessons_lib.measure import machine


def test_the_environment_names_what_decides_about_speed():
    text = machine.environment("cpu", torch.bfloat16)
    for part in (
        machine.cpu_name(),
        torch.__version__,
        f"{torch.get_num_threads()} threads",
        "transformers",
        "bfloat16",
    ):
        assert part in text
    assert "torch.bfloat16" not in text and "dtype" not in machine.environment("cpu")


def test_a_busy_machine_says_so(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0, 0))
    assert "expect slow and noisy times" in machine.environment()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0, 0))
    assert "expect slow and noisy times" not in machine.environment()


def test_a_system_without_load_averages_is_fine(monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    assert machine.load() is None and not machine.busy(None)
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
