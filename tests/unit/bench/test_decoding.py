"""The claims of lessons 01-03 really run, on a tiny model."""

import pytest
import torch
from support.benches import offline

from bench import decoding
from bench.common import CLAIMS, Run

NAMES = (
    "generate/overhead", "cache/512/vs-uncached", "decoder/eager/vs-generate", "decoder/bf16/vs-generate",
    "decoder/fp32/vs-generate", "decoder/bf16/of-bandwidth-limit",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_measured(monkeypatch, tmp_path, name):
    model, _ = offline(monkeypatch, tmp_path)
    target = model.target()
    target.problem, target.compile_seconds = "not compiled in this test", {}
    monkeypatch.setattr(decoding, "compiled_target", lambda dtype: target)
    monkeypatch.setattr(decoding.torch, "randint", lambda *of, **how: torch.full((1, 513), 7))
    found = CLAIMS[name].measure(Run(quick=True))
    assert found.ratio.low <= found.ratio.value <= found.ratio.high and found.ratio.value > 0
