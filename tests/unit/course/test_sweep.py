"""Sweeps of small notebooks on a real Dask worker."""

import csv
import os

import pytest

from lessons_lib.course import sweep
from lessons_lib.course.lessons import UsageError
from lessons_lib.course.sweep import points
from lessons_lib.measure.results import MIME

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
    assert [(r["gamma"], r["dtype"], float(r["predicted"]), float(r["measured"])) for r in read(tmp_path)] == [
        (str(g), dtype, g + 1, g * 1.5) for g in (2, 8) for dtype in ("fp32", "bf16")
    ]
    page = (tmp_path / "build" / "results.md").read_text(encoding="utf-8")
    cells = [cell.strip() for cell in page.splitlines()[-1].split("|")]
    assert cells[1:9] == ["06_drafts", "8", "bf16", "tokens", "x", "9", "12", "1.33"] and "(06_drafts.png)" in page
    assert (tmp_path / "build" / "06_drafts.png").stat().st_size > 10_000
    assert [taken["seed"] for taken in prepared] == [7] * 4
    assert "4 points, 0 of them finished before" in capsys.readouterr().out


def test_a_failing_point_stops_no_other_and_only_what_failed_or_changed_is_executed_again(swept, tmp_path, capsys):
    log, cure = tmp_path / "log", tmp_path / "cure"
    code = (
        f"import os\nopen({str(log)!r}, 'a').write(f'{{gamma}} ')\nassert gamma != 2 or os.path.exists({str(cure)!r})"
    )
    code += f"\n{SHOW}"
    assert swept(code, gamma="2,8") == 1
    assert [(row["gamma"], row["claim"]) for row in read(tmp_path)] == [("2", ""), ("8", "tokens")]
    assert "1 of 2 points failed:\n  06_drafts seed=7 gamma=2: cell [4] (`import os`)" in capsys.readouterr().out
    assert len(list((tmp_path / "build" / "points").glob("*/06_drafts.html"))) == 2
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


def test_workers_without_this_package_are_refused(swept, monkeypatch):
    monkeypatch.setattr(sweep, "fingerprint", lambda: os.getpid())
    with pytest.raises(UsageError, match="Start workers with this lessons_lib, torch and transformers"):
        swept(SHOW, gamma="2")


def test_a_scheduler_that_does_not_answer_is_one_sentence(monkeypatch):
    monkeypatch.setattr(sweep, "ANSWERS", 1)
    with pytest.raises(UsageError, match="No Dask scheduler answers at tcp://127.0.0.1:9"):
        sweep.client(1, "tcp://127.0.0.1:9")


def test_one_worker_computes_with_the_threads_that_run_has(scheduler):
    from dask.distributed import Client

    with Client(scheduler) as client:
        seen = client.submit(lambda: [os.environ.get(name) for name in sweep.THREADS], pure=False).result()
    assert seen == list(BEFORE.values())


# The points of a grid


@pytest.fixture
def lessons(write_lesson):
    """One lesson with gamma, one without."""
    return [write_lesson("05_plain", "print(tokens)"), write_lesson("06_drafts", "print(gamma)", gamma=4, sizes=[1])]


def values(found):
    return [(point.lesson.number, point.given) for point in found]


def test_a_lesson_gets_each_combination_of_the_parameters_that_it_has_once(lessons):
    found = points(lessons, ["05", "06"], {"gamma": "2,8", "tokens": "3, 5"}, {"seed": "1"})
    assert values(found) == [
        ("05", {"seed": 1, "tokens": 3}),
        ("05", {"seed": 1, "tokens": 5}),
        *(("06", {"seed": 1, "gamma": g, "tokens": t}) for g in (2, 8) for t in (3, 5)),
    ]


def test_without_a_lesson_those_with_a_parameter_of_the_grid_are_meant_and_lists_keep_their_commas(lessons):
    assert values(points(lessons, [], {"gamma": "2"}, {})) == [("06", {"gamma": 2})]
    assert values(points(lessons, [], {"sizes": "[1,2],[3]"}, {})) == [
        ("06", {"sizes": [1, 2]}),
        ("06", {"sizes": [3]}),
    ]


def test_no_workers_are_refused_before_a_model_is_prepared(lessons, prepared, tmp_path):
    with pytest.raises(UsageError, match="--workers must be at least 1"):
        sweep.sweep([], {"gamma": "2"}, {}, 0, "", tmp_path / "build", lessons)
    assert not prepared and not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("asked", "chosen", "fixed", "said"),
    [
        (["99"], {"gamma": "2"}, {}, "No lesson 99"),
        ([], {"gama": "2"}, {}, "No parameter gama. The chosen lessons have: .*gamma"),
        ([], {"gamma": "2,many"}, {}, "Parameter gamma takes a int"),
        ([], {"gamma": "2"}, {"gamma": "4"}, "Give gamma in the grid or beside it"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(lessons, asked, chosen, fixed, said):
    with pytest.raises(UsageError, match=said):
        points(lessons, asked, chosen, fixed)


def test_a_point_is_another_when_parameters_code_or_package_change_but_not_the_text(write_lesson, monkeypatch):
    def folder(code="print(seed)", seed="0", **options):
        [point] = points([write_lesson("05_plain", code, **options)], ["05"], {}, {"seed": seed})
        return point.folder

    same = folder()
    assert folder(title="# 00 Another title") == same
    assert folder("print(seed + 1)") != same and folder(seed="1") != same
    monkeypatch.setattr(sweep, "fingerprint", lambda: "another")
    assert folder() != same
