"""What makes a compiled step fast: every change has both its calls, and the right one behind it."""

import json

import pytest
import torch
from support.benches import with_heads
from support.heads import heads_of

from bench import overheads
from lessons_lib.measure.profiler import grouped


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
        assert row["before"] > 0 and row["behind"] > 0 and len(row["samples"]["before"]) == 2
        assert row["what"] and row["why"] and row["kept"] in (True, False)
    assert len({change.what + change.why for change in bench.changes()}) == len(bench.changes())


def test_formats_are_of_the_step_before_and_of_the_step_behind(bench, monkeypatch):
    monkeypatch.setattr(bench, "quantize_model", lambda decoder, weights: weights)
    monkeypatch.setattr(bench, "step", lambda decoder, rows: (decoder if isinstance(decoder, str) else None, rows))
    assert bench.formats("W8A8", "W4A16", 5)() == (("W8A8", 5), ("W4A16", 5))
    assert bench.formats(None, "W8A8")() == ((None, 1), ("W8A8", 1))


def test_heads_are_timed_whole_and_trimmed(bench, monkeypatch):
    trimmed, whole = (heads_of(bench.common.model().network) for _ in range(2))
    for heads in (trimmed, whole):
        heads.trim(torch.arange(50))
    monkeypatch.setattr(bench.medusa, "heads", lambda: trimmed)
    monkeypatch.setattr(bench, "load_heads", lambda *given: whole)
    before, behind = bench.heads()
    assert before().shape == behind().shape and (whole.scored, trimmed.scored) == (97, 50)


def test_the_mask_that_is_not_built_would_be_causal(bench):
    built, laid = bench.masks()
    rows = built()
    assert laid().mask is None and torch.equal(rows, torch.ones_like(rows).tril(rows.shape[1] - rows.shape[0]))


def test_a_step_is_divided_into_its_kernels_and_what_lies_between(bench):
    x = torch.randn(64, 64)
    found = bench.parts_of(lambda: torch.bmm(x[None], (x @ x)[None]))
    assert set(found) == {"whole", "between kernels", "attention", "products"} and min(found.values()) >= 0
    assert found["whole"] == pytest.approx(sum(seconds for part, seconds in found.items() if part != "whole"))


@pytest.mark.parametrize("kernel, part", [
    ("graph_1_gemm_m5n3072k576_kernel", "products"),
    ("aten::addmm", "products"),
    ("graph_1_cpp_fused__softmax__to_copy_bmm_3", "attention"),
    ("graph_1_cpp_fused_abs_amax_div_round_7", "norms, rotation"),
    ("lessons_lib::attend_few_rows", "attention"),
    ("lessons_lib::multiply_grouped", "products"),
    ("graph_3_cpp_fused_mul_multiply_grouped_silu_split_3", "norms, rotation"),
    ("Torch-Compiled Region: 1/0", None),
])  # fmt: skip
def test_a_kernel_says_by_its_name_what_it_does(kernel, part):
    found = grouped({kernel: 1.0}, overheads.PARTS)
    assert {name for name, seconds in found.items() if seconds} == ({part} if part else set())


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
