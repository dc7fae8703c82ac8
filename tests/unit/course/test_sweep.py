"""Sweeps of small notebooks on a real Dask worker."""

import csv
import json
import os

import pytest

from lessons_lib.course import sweep
from lessons_lib.course.lessons import UsageError
from lessons_lib.measure.scorecard import MIME

SHOW = f"""from IPython.display import display
rows = [dict(lesson="06", claim="tokens", unit="x", predicted=gamma + 1, measured=gamma * 1.5)]
display({{{MIME!r}: rows, "text/plain": "scores"}}, raw=True)"""


BEFORE = {name: os.environ.get(name) for name in sweep.THREADS}  # starting a worker sets them in this process too


@pytest.fixture(scope="module")
def scheduler():
    """The address of a scheduler with one worker, as a cluster would have."""
    with sweep.client(1, "") as client:
        yield client.scheduler_info()["address"]


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    """The parameters that models were prepared for, none of them loaded."""
    seen = []
    monkeypatch.setattr(sweep, "prepare_all", seen.extend)
    return seen


@pytest.fixture
def swept(write_lesson, tmp_path, scheduler):
    """swept(code, **grid) -> the status of a sweep over a lesson with this code and gamma."""

    def start(code, **grid):
        lesson = write_lesson("06_drafts", code, gamma=4)
        return sweep.sweep([], grid, {"seed": "7"}, 1, scheduler, tmp_path / "build", [lesson])

    return start


def read(tmp_path):
    with (tmp_path / "build" / "results.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_grid_becomes_a_table_and_a_plot(swept, tmp_path, prepared, capsys):
    assert swept(SHOW, gamma="2,8", dtype="fp32,bf16") == 0
    rows = read(tmp_path)
    assert [(r["gamma"], r["dtype"], r["predicted"], r["measured"]) for r in rows] == [
        (str(g), dtype, str(g + 1), str(g * 1.5)) for g in (2, 8) for dtype in ("fp32", "bf16")
    ]
    page = (tmp_path / "build" / "results.md").read_text(encoding="utf-8")
    assert "| 06_drafts | 8 | bf16 | tokens | 9 | 12 | 1.33 | off by +33% | - |" in page
    assert "06_drafts over gamma, a line for each of dtype=fp32, dtype=bf16" in page and "torch" in page
    assert (tmp_path / "build" / "06_drafts.png").stat().st_size > 10_000
    records = json.loads((tmp_path / "build" / "results.json").read_text(encoding="utf-8"))
    assert [record["parameters"]["seed"] for record in records] == [7] * 4 and len(prepared) == 4
    assert "4 points, 0 of them finished before" in capsys.readouterr().out


def test_a_failing_point_is_tried_twice_and_stops_no_other(swept, tmp_path, capsys):
    log = tmp_path / "log"
    code = f"open({str(log)!r}, 'a').write(f'{{gamma}} ')\nassert gamma != 2, 'too few'"
    assert swept(f"{code}\n{SHOW}", gamma="2,8") == 1
    assert sorted(log.read_text().split()) == ["2", "2", "8"]
    assert [(row["gamma"], row["claim"]) for row in read(tmp_path)] == [("2", ""), ("8", "tokens")]
    said = capsys.readouterr().out
    assert "1 of 2 points failed:\n  06_drafts seed=7 gamma=2: cell [4] (`open(" in said and "too few" in said
    [left] = (path for path in (tmp_path / "build" / "points").iterdir() if not results_of(path)["failure"] == "")
    assert {path.name for path in left.iterdir()} >= {"06_drafts.ipynb", "06_drafts.html"}


def results_of(path):
    return json.loads((path / "point.json").read_text(encoding="utf-8"))


def test_only_what_failed_or_changed_is_executed_again(swept, tmp_path, capsys):
    log, cure = tmp_path / "log", tmp_path / "cure"
    code = (
        f"import os\nopen({str(log)!r}, 'a').write(f'{{gamma}} ')\nassert gamma != 2 or os.path.exists({str(cure)!r})"
    )
    assert swept(code, gamma="2,8") == 1
    cure.touch()
    log.write_text("")
    assert swept(code, gamma="2,8,9") == 0
    assert sorted(log.read_text().split()) == ["2", "9"]
    assert "3 points, 1 of them finished before" in capsys.readouterr().out
    assert swept(f"{code}\n1 + 1", gamma="8") == 0
    assert sorted(log.read_text().split()) == ["2", "8", "9"]


def test_a_worker_that_gives_nothing_back_is_a_failure_of_its_point(write_lesson, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "work", lambda *given: 1 / 0)
    lesson = write_lesson("06_drafts", SHOW, gamma=4)
    assert sweep.sweep([], {"gamma": "2"}, {}, 1, "", tmp_path / "build", [lesson]) == 1
    [row] = read(tmp_path)
    assert row["failure"] == "ZeroDivisionError: division by zero" and row["seconds"] == ""


def test_a_misspelt_parameter_starts_nothing(swept, tmp_path, prepared):
    with pytest.raises(UsageError, match="No parameter gama"):
        swept(SHOW, gama="2")
    assert not prepared and not (tmp_path / "build").exists()


def test_workers_without_this_package_are_refused():
    with pytest.raises(UsageError, match="another lessons_lib, torch or transformers: tcp://two"):
        sweep.same_package({"tcp://one": sweep.package(), "tcp://two": "0123"})
    with pytest.raises(UsageError, match="has no workers"):
        sweep.same_package({})


def test_a_scheduler_that_does_not_answer_is_one_sentence(monkeypatch):
    monkeypatch.setattr(sweep, "ANSWERS", 1)
    with pytest.raises(UsageError, match="No Dask scheduler answers at tcp://127.0.0.1:9"):
        with sweep.client(1, "tcp://127.0.0.1:9"):
            pass


def test_one_worker_computes_with_the_threads_that_run_has(scheduler):
    from dask.distributed import Client

    with Client(scheduler) as client:
        seen = client.submit(lambda: [os.environ.get(name) for name in sweep.THREADS], pure=False).result()
    assert seen == list(BEFORE.values())


def test_more_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert set(sweep.threads(1).values()) == {None}
    assert set(sweep.threads(3).values()) == {2} and set(sweep.threads(9).values()) == {1}
