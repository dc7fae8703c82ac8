"""Results: bars and verdicts, what a run may change in the claims file, and the scorecard's way through a notebook."""

import json
import math

import nbformat
import pytest
from nbclient import NotebookClient

from lessons_lib.measure import results
from lessons_lib.measure.clock import Interval
from lessons_lib.measure.results import (
    MIME,
    Result,
    claim_cells,
    collect,
    holds,
    load,
    make_claim,
    short_of_bar,
    update,
    write_scorecard,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "claims.json"


@pytest.mark.parametrize(
    "value, bar, expected",
    [
        (2.0, ">= 2.0", True), (1.99, ">= 2.0", False), (1.03, "<= 1.03", True), (1.04, "<= 1.03", False),
        (2.0, "> 2", False), (1.0, "< 2", True), (5.0, "", None), (None, ">= 2.0", None),
        (float("nan"), ">= 2.0", None),
    ],
)  # fmt: skip
def test_a_bar_is_judged_by_the_value(value, bar, expected):
    assert holds(value, bar) is expected


@pytest.mark.parametrize("bar", ["2.0", "at least 2", "=> 2", ">= two"])
def test_a_bar_of_another_form_is_refused(bar):
    with pytest.raises(ValueError, match="write it like"):
        holds(1.0, bar)


def test_holds_is_judged_by_the_value_and_not_by_the_interval():
    row = make_claim("x/y", Interval(2.1, 1.5, 2.6), ">= 2.0", "plain, bf16, eager")
    assert (row.measured, row.low, row.high, row.holds) == (2.1, 1.5, 2.6, True)


def test_the_range_of_few_runs_is_stored_as_such(path):
    (row,) = update(path, [make_claim("x/y", Interval(2.1, 2.0, 2.2, runs=3))])
    assert (row.low, row.high, row.runs) == (2.0, 2.2, 3) and claim_cells([row])[0][2] == "2 to 2.2, 3 runs"


def test_a_partial_run_replaces_only_its_rows(path):
    update(path, [make_claim("a", 1), make_claim("b", 2)])
    rows = update(path, [make_claim("b", 3), make_claim("c", 4)])
    assert (
        [(row.claim, row.measured) for row in rows]
        == [("a", 1), ("b", 3), ("c", 4)]
        == [(row.claim, row.measured) for row in load(path)]
    )


def test_a_quick_run_never_overwrites_a_full_one(path):
    update(path, [make_claim("a", 1)], host="full host")
    before = path.read_bytes()
    update(path, [make_claim("a", 9)], quick=True, host="quick host")
    assert path.read_bytes() == before


def test_a_quick_row_fills_a_gap_is_marked_and_gives_way(path):
    update(path, [make_claim("a", 1)])
    rows = update(path, [make_claim("a", 9), make_claim("b", 2)], quick=True)
    assert [(row.measured, row.quick) for row in rows] == [(1, False), (2, True)]
    assert update(path, [make_claim("b", 3)], quick=True)[1].measured == 3
    assert [(row.measured, row.quick) for row in update(path, [make_claim("b", 4)])] == [(1, False), (4, False)]


def test_no_file_means_no_rows_and_a_damaged_one_is_named(path):
    assert load(path) == []
    path.parent.mkdir()
    path.write_text('{"rows": [')
    with pytest.raises(ValueError, match="claims.json is damaged"):
        load(path)


def test_those_that_fall_short_are_listed_with_those_never_measured():
    rows = [
        make_claim("ok", 2, ">= 1"),
        make_claim("low", 0.5, ">= 1"),
        make_claim("open", None, ">= 1"),
        make_claim("free", 3),
    ]
    assert [row.claim for row in short_of_bar(rows)] == ["low", "open"]


def test_the_table_shows_value_interval_and_failure():
    half = Interval(0.5, 0.5, 0.5, runs=3)
    text = results.claim_table([make_claim("low", half, ">= 1", "plain"), make_claim("open", None, ">= 1")])
    assert "| low | 0.5 x | 0.5 to 0.5, 3 runs | >= 1 | NO | plain |" in text and "not measured" in text


HERE = {"cpu": "EPYC", "instructions": "AVX512 bf16", "device": "EPYC", "cores": 2}

THERE = HERE | {"instructions": "AVX2"}


def test_rows_of_another_machine_say_so_and_leave_the_files_host(path):
    update(path, [make_claim("a", 1), make_claim("b", 1)], host=HERE, versions={"torch": "1"})
    update(path, [make_claim("b", 2, note="why")], host=THERE, versions={"torch": "2"})
    content = json.loads(path.read_text())
    assert (content["host"], content["versions"]) == (HERE, {"torch": "1"})
    assert [row.host for row in load(path)] == ["", "EPYC, AVX2, 2 cores"]
    assert "why; on EPYC, AVX2, 2 cores" in results.claim_table(load(path))
    update(path, [make_claim("b", 3)], host=HERE | {"load": 1.0})
    assert [row.host for row in load(path)] == ["", ""]


def test_a_machine_that_measured_every_row_is_the_files_host(path):
    update(path, [make_claim("a", 1)], host=HERE)
    update(path, [make_claim("a", 2), make_claim("b", 2)], host=THERE, versions={"torch": "2"})
    assert json.loads(path.read_text())["host"] == THERE and [row.host for row in load(path)] == ["", ""]


def test_what_was_measured_stays_where_it_could_not_be_measured_again(path):
    update(path, [make_claim("a", 1, ">= 1")])
    rows = update(
        path, [make_claim("a", None, ">= 1", note="no engine"), make_claim("b", None, ">= 1", note="no engine")]
    )
    assert [(row.measured, row.holds) for row in rows] == [(1, True), (None, None)]


FULL = Result(
    "01", "decode step", "ms", predicted=10, measured=12, limit=8, peer=40, peer_name="transformers generate",
    published=9.5, source="a paper", note="bf16",
)  # fmt: skip

BARE = Result("00", "GPU bandwidth", "GB/s")


@pytest.mark.parametrize(
    "predicted, measured, verdict",
    [
        (100, 100, "within 25%"), (100, 125, "within 25%"), (100, 80, "within 25%"),
        (100, 126, "off by a factor of 1.26"), (100, 79, "off by a factor of 1.27"),
        (100, 300, "off by a factor of 3.00"), (100, 0, "off by a factor of inf"), (0, 0, "within 25%"), (0, 1, ""),
        (None, 5, ""), (5, None, ""), (math.nan, 5, ""), (None, None, ""),
    ],
)  # fmt: skip
def test_the_verdict_follows_the_ratio(predicted, measured, verdict):
    assert Result("01", "x", "s", predicted, measured).verdict == verdict


@pytest.mark.parametrize("seconds", [0.74, 0.78, 0.85, 1.2, 1.26, 1.31])
def test_a_time_and_the_rate_that_is_its_inverse_get_the_same_verdict(seconds):
    assert Result("01", "x", "s", 1, seconds).verdict == Result("01", "x", "/s", 1, 1 / seconds).verdict


def test_rows_come_back_from_an_executed_notebook(tmp_path):
    code = f"from lessons_lib.measure.results import Result, show\nshow([{FULL!r}, {BARE!r}])"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120).execute()
    path = tmp_path / "01.ipynb"
    nbformat.write(notebook, path)
    nbformat.validate(notebook)
    (output,) = notebook.cells[0].outputs  # one bundle
    assert set(output.data) == {"text/plain", "text/html", MIME}
    assert collect([path]) == [FULL, BARE]


def test_a_scorecard_leaves_out_the_columns_in_which_no_row_has_anything(capsys):
    results.show([FULL, BARE])
    printed = capsys.readouterr().out
    assert all(heading in printed for heading in results.SCORECARD)
    results.show([Result("01", "decode step", "ms", predicted=10, measured=12)])
    heading = capsys.readouterr().out.splitlines()[1]
    assert heading.split() == ["lesson", "claim", "predicted", "measured", "ratio", "verdict"]


def test_a_later_row_of_the_same_claim_replaces_one_and_lessons_without_rows_are_fine(tmp_path):
    for name, measured in (("a", 11), ("b", 12)):
        data = {MIME: [{"lesson": "01", "claim": "decode step", "unit": "ms", "measured": measured, "future": 1}]}
        cells = [{"cell_type": "markdown"}, {"outputs": [{"data": data}, {"text": "printed"}]}]
        (tmp_path / name).write_text(json.dumps({"cells": cells}))
    (tmp_path / "c").write_text(json.dumps({"cells": []}))
    (found,) = collect([tmp_path / name for name in "abc"])
    assert found == Result("01", "decode step", "ms", measured=12)


def test_the_summary_counts_claims_verdicts_and_gaps():
    off = Result("01", "y", "s", 1, 2)
    line = results.summary([FULL, off, BARE])
    assert line == "3 claims: 1 of 2 predictions within 25%, 1 not measured."


def test_the_written_page_says_everything_that_a_row_knows(tmp_path):
    paths = write_scorecard([FULL, BARE], tmp_path / "build", machine="some CPU, 2 threads")
    assert [path.name for path in paths] == ["scorecard.html", "scorecard.md", "scorecard.json"]
    for path in paths[:2]:
        text = path.read_text()
        for part in ("decode step (bf16)", "10 ms", "12 ms", "1.20", "40 ms (transformers generate)",
                     "9.5 ms (a paper)", "8 ms", "within 25%", "not measured", "some CPU", "2 claims"):  # fmt: skip
            assert part in text, (path.name, part)


@pytest.mark.parametrize(
    "result",
    [
        Result("12", "share", "", 0.25, 0.14),
        Result("09", "nodes of the fastest tree", "nodes", 0, 0, limit=0.0),
    ],
    ids=["a share has no unit", "a zero is a number"],
)
def test_results_come_back_after_they_were_stored(result):
    assert results.from_row(result.row()) == result and "quick" not in result.row()
