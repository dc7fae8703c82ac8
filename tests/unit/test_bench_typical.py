"""What typical acceptance does to drawn texts: what is kept of each rule's, on a tiny model."""

import json

import pytest
import torch
from support.benches import asks, with_heads

from bench import asking, typical
from lessons_lib import generate
from lessons_lib.decoding.generate import encode
from lessons_lib.decoding.probing import logits_along


def test_every_question_is_answered_by_every_rule_and_judged_by_the_target(monkeypatch, tmp_path):
    with_heads(monkeypatch, tmp_path)
    asks(monkeypatch, typical.KINDS)
    monkeypatch.setattr(typical, "questions", asking.questions)
    monkeypatch.setattr(typical, "RESULTS", tmp_path)
    monkeypatch.setattr(typical, "NEW", 6)
    assert typical.main() == 0
    found = json.loads((tmp_path / "medusa-typical.json").read_text())
    assert len(found["rows"]) == len(typical.KINDS) * typical.DRAWS and found["temperature"] == typical.TEMPERATURE
    assert all(1 <= row[name]["tokens"] <= 6 for row in found["rows"] for name in typical.RULES)
    assert all(row["plain"]["steps"] == row["plain"]["tokens"] - 1 for row in found["rows"])
    assert any(row["typical"]["steps"] < row["typical"]["tokens"] - 1 for row in found["rows"])


def test_a_text_is_as_likely_as_the_targets_own_probabilities_say(monkeypatch, tmp_path):
    with_heads(monkeypatch, tmp_path)
    ids = encode(asking.eager(), "ab ab.")
    rule = typical.RULES["plain"]
    found = typical.written(ids, None, rule, torch.Generator().manual_seed(3))
    out = generate(asking.eager(), ids, None, rule, max_new_tokens=64, generator=torch.Generator().manual_seed(3))
    logits = logits_along(asking.eager(), [*ids, *out.ids][:-1], len(out.ids))
    log_p = (logits / typical.TEMPERATURE).log_softmax(-1)[range(len(out.ids)), out.ids]
    assert found["log_probability"] == pytest.approx(log_p.mean().item(), abs=1e-4)
    assert found["tokens"] == len(out.ids) and found["steps"] == len(out.ids) - 1
