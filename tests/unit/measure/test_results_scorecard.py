"""The scorecard: verdicts, the rows' way through an executed notebook, and the written page."""

import json
import math

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from lessons_lib.measure import results
from lessons_lib.measure.results import MIME, Result, collect, make_claim, show, write_scorecard

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


def test_the_ratio_is_measured_over_predicted():
    assert FULL.ratio == pytest.approx(1.2)
    assert Result("01", "x", "s", predicted=2).ratio is None


def test_tensor_scalars_become_numbers_that_json_holds():
    score = Result("01", "x", "s", predicted=torch.tensor(2.0), measured=7)
    assert type(score.predicted) is float and type(score.measured) is int


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


def test_a_later_row_of_the_same_claim_replaces_one_and_lessons_without_rows_are_fine(tmp_path):
    for name, measured in (("a", 11), ("b", 12)):
        data = {MIME: [{"lesson": "01", "claim": "decode step", "unit": "ms", "measured": measured, "future": 1}]}
        cells = [{"cell_type": "markdown"}, {"outputs": [{"data": data}, {"text": "printed"}]}]
        (tmp_path / name).write_text(json.dumps({"cells": cells}))
    (tmp_path / "c").write_text(json.dumps({"cells": []}))
    (found,) = collect([tmp_path / name for name in "abc"])
    assert found == Result("01", "decode step", "ms", measured=12)


def test_outside_a_notebook_the_table_is_printed(capsys):
    show([FULL, BARE])
    printed = capsys.readouterr().out
    assert "decode step (bf16)" in printed and "12 ms" in printed and "not measured" in printed


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


def test_what_is_missing_is_said(tmp_path):
    table = write_scorecard([BARE], tmp_path)[1].read_text()
    assert "| 00 | GPU bandwidth | - | not measured | - | - | - | - | - |" in table


def test_the_page_needs_no_other_file_and_scrolls_on_a_phone(tmp_path):
    page = write_scorecard([FULL], tmp_path)[0].read_text()
    assert "http" not in page and "src=" not in page and "<link" not in page
    assert "overflow-x:auto" in page and 'name="viewport"' in page and "color-scheme: light dark" in page


def test_the_written_json_holds_rows_with_ratio_and_verdict(tmp_path):
    content = json.loads(write_scorecard([FULL, BARE], tmp_path)[2].read_text())
    first, second = content["scores"]
    assert (first["ratio"], first["verdict"]) == (pytest.approx(1.2), "within 25%")
    assert second["measured"] is None and results.from_row(first) == FULL


def test_named_claims_stand_in_a_second_table(tmp_path):
    row = make_claim("cache/512/vs-uncached", 6.5, ">= 8", "uncached, fp32, eager")
    html, markdown, data = write_scorecard([FULL], tmp_path, claims=[row])
    assert html.read_text().count("<table") == 2 and "cache/512/vs-uncached" in markdown.read_text()
    assert json.loads(data.read_text())["claims"][0]["holds"] is False
