"""Named claims: bars, and what a partial or quick run may change in the file."""

import json

import pytest

from lessons_lib.measure import results
from lessons_lib.measure.clock import Ratio, Samples
from lessons_lib.measure.results import holds, load, make_claim, short_of_bar, update


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
    ratio = Ratio(2.1, 1.5, 2.6, Samples((2.1,)), Samples((1.0,)))
    row = make_claim("x/y", ratio, ">= 2.0", "plain, bf16, eager")
    assert (row.measured, row.low, row.high, row.holds) == (2.1, 1.5, 2.6, True)


def test_a_plain_number_has_no_interval_and_none_is_not_measured():
    assert (make_claim("x", 5).measured, make_claim("x", 5).low) == (5.0, None)
    assert make_claim("x", None, ">= 1").holds is None


def test_a_file_has_the_agreed_form(path):
    update(path, [make_claim("b", 2, ">= 1", "base", note="why")], host="some CPU", versions={"torch": "2"})
    content = json.loads(path.read_text())
    assert (content["host"], content["versions"]) == ("some CPU", {"torch": "2"})
    (row,) = content["rows"]
    assert set(row) == {"claim", "value", "low", "high", "unit", "bar", "holds", "baseline", "date", "note"}


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


def test_writing_leaves_nothing_else_in_the_folder(path):
    update(path, [make_claim("a", 1)])
    assert [file.name for file in path.parent.iterdir()] == ["claims.json"]


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


def test_a_bar_of_three_decimals_shows_the_digits_that_decide():
    near, far = (results.make_claim("a", value, bar) for value, bar in ((1.00187, "<= 1.005"), (1.2345, ">= 1.2")))
    assert [cells[1] for cells in results.claim_cells([near, far])] == ["1.0019 x", "1.23 x"]


def test_a_table_may_show_some_columns_in_their_own_order():
    ratio = Ratio.of(Samples((1.0,)), Samples((2.0,)))
    text = results.claim_table([make_claim("low", ratio, ">= 1", "plain")], ("holds", "claim"))
    assert text == "| holds | claim |\n| --- | --- |\n| NO | low |"
    with pytest.raises(ValueError):
        results.claim_table([], ("verdict",))


def test_the_table_shows_value_interval_and_failure():
    ratio = Ratio.of(Samples((1.0,) * 3), Samples((2.0,) * 3))
    text = results.claim_table([make_claim("low", ratio, ">= 1", "plain"), make_claim("open", None, ">= 1")])
    assert "| low | 0.5 x | 0.5 to 0.5 | >= 1 | NO | plain |" in text and "not measured" in text


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
