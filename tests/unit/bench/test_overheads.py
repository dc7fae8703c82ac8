"""What makes a compiled step fast: every change has both its calls, and the right one after it."""

import json

import pytest
import torch
from support.benches import with_heads

from bench import overheads


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """bench/overheads.py with a tiny float64 model of two layers, its steps not compiled."""
    model = with_heads(monkeypatch, tmp_path)
    monkeypatch.setattr(overheads, "CompiledTarget", lambda decoder, *given, **options: model.target())
    monkeypatch.setattr(overheads, "small", lambda: model.target().decoder)
    monkeypatch.setattr(overheads, "prompt_of", lambda tokens: [1] * 8)
    monkeypatch.setattr(overheads, "load_heads", lambda *given: overheads.medusa.heads())
    return overheads


def test_every_change_is_timed_with_what_it_replaces(bench, monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 2)
    for change in bench.changes():
        row = bench.row_of(change)
        assert row["before"] > 0 and row["after"] > 0 and len(row["samples"]["before"]) == 2
        assert row["what"] and row["why"] and row["kept"] in (True, False)
    assert len({change.what + change.why for change in bench.changes()}) == len(bench.changes())


def test_the_mask_that_is_not_built_would_be_causal(bench):
    built, laid = bench.masks()
    rows = built()
    assert laid().mask is None and torch.equal(rows, torch.ones_like(rows).tril(rows.shape[1] - rows.shape[0]))


def test_changes_that_are_named_are_timed_and_the_others_stay(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "parts_of", lambda call: {"whole": 1.0})
    changes = [bench.Change(what, True, "why", None) for what in ("one row", "five rows", "a mask")]
    monkeypatch.setattr(bench, "changes", lambda: changes)
    times = iter(range(9))
    monkeypatch.setattr(bench, "row_of", lambda change: {"what": change.what, "before": next(times)})
    stored = lambda: json.loads((tmp_path / "ladder-overheads.json").read_text())["rows"]  # noqa: E731
    bench.main()
    assert [row["before"] for row in stored()] == [0, 1, 2]
    changes.append(bench.Change("six rows", True, "new", None))
    bench.main(["five", "mask"])
    assert {row["what"]: row["before"] for row in stored()} == {"one row": 0, "five rows": 3, "a mask": 4}
    del changes[0]  # measured once, and no more
    bench.main(["six"])
    assert [row["before"] for row in stored()] == [0, 3, 4, 5]
