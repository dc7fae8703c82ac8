"""The benchmark's runner, with claims that measure nothing: resuming, raw samples, quick runs, unknown names."""

import json
import sys

import pytest

from lessons_lib.course.bootstrap import ROOT
from lessons_lib.measure import claims
from lessons_lib.measure.clock import Ratio, Samples


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import registry
    import run

    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setattr(run, "UNFINISHED", tmp_path / "build" / "unfinished.json")
    monkeypatch.setattr(run, "CLAIMS", {})
    run.measured = []

    def add(name, fails=()):
        def measure(how):
            run.measured.append(name)
            if fails:
                raise fails.pop()
            return registry.Measured(Ratio.of(Samples((4.0, 4.0)), Samples((2.0, 2.0))), "said", {"bytes": 7})

        run.CLAIMS[name] = registry.Claim(name, ">= 1.5", "a baseline", measure)

    run.add = add
    return run


def call(bench, monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    return bench.main()


def test_a_claim_leaves_its_row_and_its_raw_samples(bench, monkeypatch, tmp_path):
    bench.add("a/b")
    assert call(bench, monkeypatch) == 0
    (row,) = json.loads((tmp_path / "claims.json").read_text())["rows"]
    assert (row["claim"], row["value"], row["holds"], row["note"]) == ("a/b", pytest.approx(2.0), True, "said")
    raw = json.loads((tmp_path / "a-b.json").read_text())
    assert raw["a"] == [4.0, 4.0] and raw["bytes"] == 7 and raw["versions"]["torch"]


def test_an_interrupted_run_goes_on_where_it_stopped_and_a_finished_one_starts_anew(bench, monkeypatch):
    bench.add("a")
    bench.add("b", fails=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        call(bench, monkeypatch)
    assert call(bench, monkeypatch) == 0
    assert bench.measured == ["a", "b", "b"]
    assert call(bench, monkeypatch) == 0
    assert bench.measured == ["a", "b", "b", "a", "b"]


def test_claims_are_chosen_by_how_they_begin_and_an_unknown_one_lists_them(bench, monkeypatch, capsys):
    bench.add("cache/512")
    bench.add("decoder/eager")
    assert call(bench, monkeypatch, "decoder") == 0 and bench.measured == ["decoder/eager"]
    assert call(bench, monkeypatch, "medusa") == 2
    assert "there are: cache/512, decoder/eager" in capsys.readouterr().err


def test_a_quick_run_leaves_no_raw_samples_and_no_mark_on_a_full_row(bench, monkeypatch, tmp_path):
    bench.add("a")
    call(bench, monkeypatch, "--quick")
    assert not (tmp_path / "a.json").exists()
    assert json.loads((tmp_path / "claims.json").read_text())["rows"][0]["quick"] is True


def test_stored_claims_have_the_bars_and_baselines_of_the_registry(monkeypatch):
    """A bar that moves, or a comparison that changes, asks for a new measurement."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import registry
    import run  # noqa: F401  (registers all claims)

    known = {name: (claim.bar, claim.baseline) for name, claim in registry.CLAIMS.items()}
    stored = {row.claim: (row.bar, row.baseline) for row in claims.load(ROOT / "bench" / "results" / "claims.json")}
    assert stored and stored == {name: known.get(name) for name in stored}
