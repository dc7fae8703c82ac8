"""The claims of lessons 01-03 really run, on a tiny model."""

import json
from types import SimpleNamespace

import pytest
import torch
from support.benches import offline

from bench import common, decoding
from bench.common import CLAIMS, Run
from lessons_lib.models import tiny

NAMES = (
    "generate/overhead", "cache/512/vs-uncached", "decoder/eager/vs-generate", "decoder/bf16/vs-generate",
    "decoder/fp32/vs-generate", "decoder/bf16/of-bandwidth-limit",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_measured(monkeypatch, name):
    model, _ = offline(monkeypatch)
    target = model.target()
    target.problem, target.compile_seconds = "not compiled in this test", {}
    monkeypatch.setattr(decoding, "compiled_target", lambda dtype: target)
    monkeypatch.setattr(decoding.torch, "randint", lambda *of, **how: torch.full((1, 513), 7))
    found = CLAIMS[name].measure(Run(quick=True))
    assert found.ratio.low <= found.ratio.value <= found.ratio.high and found.ratio.value > 0


def test_the_ways_to_a_static_cache_are_timed_and_write_the_same_text():
    network = tiny(1, torch.float32)
    found = decoding.static_cache_usages(network, [5, 80, 3], new=5, repeats=2, backend="eager")
    assert {name: len(times) for name, times in found["seconds"].items()} == {
        "generate, growing cache": 2, "1. static by name": 2, "2. own compiled step": 2, "3. compile configuration": 2,
    }  # fmt: skip
    assert all(second > 0 for times in found["seconds"].values() for second in times)
    assert set(found["compile_seconds"]) == {"2. own compiled step", "3. compile configuration"}


def test_a_way_that_writes_another_text_is_refused(monkeypatch):
    monkeypatch.setattr(decoding, "own_loop", lambda network, ids, new, step: iter([7] * new))
    with pytest.raises(ValueError, match="2. own compiled step"):
        decoding.static_cache_usages(tiny(1, torch.float32), [5, 80, 3], new=5, repeats=1, backend="eager")


def test_the_ways_are_stored_for_the_lesson(tmp_path, monkeypatch):
    model = SimpleNamespace(network=tiny(1, torch.float32), tokenizer=lambda text: SimpleNamespace(input_ids=[5, 80]))
    monkeypatch.setattr(common, "model", lambda dtype: model)
    monkeypatch.setattr(decoding, "static_cache_usages", lambda *args, **options: {"seconds": {"a": [1.0]}})
    monkeypatch.setattr(decoding, "RESULTS", tmp_path)
    decoding.main()
    stored = json.loads((tmp_path / "static-cache-usages.json").read_text())
    assert stored["seconds"] == {"a": [1.0]} and stored["dtype"] == "fp32" and stored["host"]["cpu"]
