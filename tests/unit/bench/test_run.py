"""The benchmark's runner, with claims that measure nothing: resuming, raw samples, quick runs, unknown names."""

import json
import re
import sys
from dataclasses import replace

import pytest

from bench import common, run
from lessons_lib.data import questions
from lessons_lib.measure import results
from lessons_lib.measure.clock import Ratio, Samples
from lessons_lib.paths import ROOT


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setattr(run, "OTHERS", tmp_path / "others")
    monkeypatch.setattr(run, "UNFINISHED", tmp_path / "build" / "unfinished.json")
    monkeypatch.setattr(run, "CLAIMS", {})
    run.measured = []

    def add(name, fails=()):
        def measure(how):
            run.measured.append(name)
            if fails:
                raise fails.pop()
            return common.Measured(Ratio.of(Samples((4.0, 4.0)), Samples((2.0, 2.0))), "said", {"bytes": 7})

        run.CLAIMS[name] = common.Claim(name, ">= 1.5", "a baseline", measure, "{number}")

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
    assert raw["dtype"] == common.DTYPE and raw["host"]["threads"]


def test_what_this_machine_cannot_measure_is_said_and_replaces_no_value(bench, monkeypatch, tmp_path):
    bench.add("a", fails=[common.NotMeasured("set THAT")])
    bench.add("b")
    call(bench, monkeypatch)
    a, b = json.loads((tmp_path / "claims.json").read_text())["rows"]
    assert (a["value"], a["holds"], a["note"]) == (None, None, "set THAT") and b["value"] == pytest.approx(2.0)
    assert not (tmp_path / "a.json").exists()
    bench.add("b", fails=[common.NotMeasured("set THAT")])
    call(bench, monkeypatch, "b")
    assert json.loads((tmp_path / "claims.json").read_text())["rows"][1] == b


def test_an_interrupted_run_goes_on_where_it_stopped_and_a_finished_one_starts_anew(bench, monkeypatch):
    bench.add("a")
    bench.add("b", fails=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        call(bench, monkeypatch)
    assert call(bench, monkeypatch) == 0
    assert bench.measured == ["a", "b", "b"]
    assert call(bench, monkeypatch) == 0
    assert bench.measured == ["a", "b", "b", "a", "b"]


@pytest.mark.parametrize("changed, measured", [("--quick", ["a", "b"]), ("a", ["a"])])
def test_an_interrupted_run_does_not_go_on_quicker_or_with_fewer_claims(bench, monkeypatch, changed, measured):
    bench.add("a")
    bench.add("b", fails=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        call(bench, monkeypatch)
    assert call(bench, monkeypatch, changed) == 0
    assert bench.measured == ["a", "b", *measured]


def test_claims_are_chosen_by_how_they_begin_and_an_unknown_one_lists_them(bench, monkeypatch, capsys):
    bench.add("cache/512")
    bench.add("decoder/eager")
    assert call(bench, monkeypatch, "decoder") == 0 and bench.measured == ["decoder/eager"]
    assert call(bench, monkeypatch, "medusa") == 2
    assert "there are: cache/512, decoder/eager" in capsys.readouterr().err


def test_a_quick_run_shows_its_own_numbers_beside_a_full_one(bench, monkeypatch, tmp_path, capsys):
    bench.add("a")
    call(bench, monkeypatch)
    full = (tmp_path / "claims.json").read_bytes(), (tmp_path / "a.json").read_bytes()
    capsys.readouterr()
    call(bench, monkeypatch, "--quick")
    assert ((tmp_path / "claims.json").read_bytes(), (tmp_path / "a.json").read_bytes()) == full
    assert json.loads((bench.OTHERS / "quick" / "claims.json").read_text())["rows"][0]["quick"] is True
    assert (bench.OTHERS / "quick" / "a.json").exists() and "quick run" in capsys.readouterr().out


def test_stored_claims_have_the_bars_and_baselines_of_the_registry():
    """A bar that moves, or a comparison that changes, asks for a new measurement; the format is the machine's own."""
    plain = lambda baseline: re.sub(r"\b(bf16|fp32)\b", "its format", baseline)  # noqa: E731
    baselines = {name: claim.compared_with(common.Run(quick=False)) for name, claim in common.CLAIMS.items()}
    known = {name: (claim.bar, plain(baselines[name])) for name, claim in common.CLAIMS.items()}
    rows = results.load(ROOT / "bench" / "results" / "claims.json")
    stored = {row.claim: (row.bar, plain(row.baseline)) for row in rows}
    assert stored and stored == {name: known.get(name) for name in stored}


def test_every_claim_has_a_sentence_and_one_that_misses_its_bar_a_reason():
    field = re.compile(r"\{(times|percent|number)\}")
    assert [name for name, claim in common.CLAIMS.items() if len(field.findall(claim.says)) != 1] == []
    missing = {row.claim for row in results.short_of_bar(results.load(ROOT / "bench" / "results" / "claims.json"))}
    assert {name for name, claim in common.CLAIMS.items() if claim.missed} == missing


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "theirs.jsonl"
    path.write_text('{"question_id": 1, "category": "math", "turns": ["1 + 1?"]}\n')
    return path


def test_other_questions_go_to_the_claims_that_ask_and_leave_the_stored_rows_alone(bench, monkeypatch, tmp_path, file):
    seen = []
    bench.add("a/asks")
    bench.add("b/times")
    measure = bench.CLAIMS["a/asks"].measure
    noting = lambda run: seen.append(run.questions) or measure(run)  # noqa: E731
    bench.CLAIMS["a/asks"] = replace(bench.CLAIMS["a/asks"], measure=noting, asks="ours")
    monkeypatch.setattr(bench, "OTHERS", tmp_path / "others")
    assert call(bench, monkeypatch) == 0
    stored = {path: path.read_text() for path in tmp_path.glob("*.json")}
    assert call(bench, monkeypatch, "--questions", str(file)) == 0
    assert seen == [None, file] and bench.measured == ["a/asks", "b/times", "a/asks"]
    assert {path: path.read_text() for path in tmp_path.glob("*.json")} == stored
    (folder,) = (tmp_path / "others").iterdir()
    assert folder.name.startswith("theirs-")
    assert {path.name for path in folder.iterdir()} == {"claims.json", "a-asks.json"}


def test_every_file_of_questions_has_a_folder_of_its_own_and_none_that_of_quick_runs(bench, tmp_path):
    folders = {bench.results(common.Run(quick=True))}
    for i, name in enumerate(("quick.jsonl", "x.jsonl", "x-quick.jsonl", "other/x.jsonl")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"question_id": {i}, "category": "math", "turns": ["1 + 1?"]}}\n')
        folders |= {bench.results(common.Run(quick, path)) for quick in (False, True)}
    assert len(folders) == 9


@pytest.mark.parametrize("text, said", [
    (None, "cannot read"), ("", "holds no question"), ("[", "line 1 of"),
])  # fmt: skip
def test_a_file_that_holds_no_questions_is_one_sentence_and_nothing_runs(bench, monkeypatch, capsys, file, text, said):
    bench.add("a")
    bench.CLAIMS["a"] = replace(bench.CLAIMS["a"], asks="ours")
    file.unlink() if text is None else file.write_text(text)
    assert call(bench, monkeypatch, "--questions", str(file)) == 2
    error = capsys.readouterr().err
    assert said in error and file.name in error and error.count("\n") == 1 and bench.measured == []


def test_the_line_of_a_question_file_that_the_page_of_commands_shows_can_be_asked(tmp_path):
    (line,) = re.findall(r'`({"question_id".*?})`', (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"))
    path = tmp_path / "file"
    path.write_text(line, encoding="utf-8")
    (question,) = questions(path)
    assert question.category == "mail" and question.turns == ("Answer this mail: ...",)
