"""The rows that hold claims beside counts, predictions and published figures."""

import json

import pytest

from lessons_lib.measure.results import make_claim, update
from tools.techniques import KNOWN, TECHNIQUES, technique_cells


@pytest.fixture
def results(tmp_path):
    """A draft model that was timed beside its peer, lookahead that was counted, a cache that was not measured."""
    rows = [
        make_claim("assisted/mixed/vs-plain", 1.5),
        make_claim("assisted/vs-transformers", 1.25),
        make_claim("lookahead/code-lists/compression", 1.8),
        make_claim("cache/512/vs-uncached", None, ">= 8"),
    ]
    update(tmp_path / "claims.json", rows)
    raw = {"assisted-mixed-vs-plain": {"tokens_per_pass": {"chat": 2.0, "math": 3.0}, "predicted": 1.4321}}
    asked = [{"category": "chat"}, {"category": "math"}, {"category": "math", "short": 7}, {"category": "chat"}]
    raw["assisted-mixed-vs-plain"]["questions"] = asked
    raw["lookahead-code-lists-compression"] = {"speed": [1.09, 0.9, 1.3]}
    for name, content in raw.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def row_of(results, name) -> dict:
    (row,) = [row for row in technique_cells(results) if row[0] == name]
    return dict(zip(TECHNIQUES, row, strict=True))


def test_a_row_says_what_was_counted_timed_predicted_and_compared(results):
    row = row_of(results, "draft model")
    assert row["tokens per pass"] == "2.5" and row["speedup"] == "1.5 x" and row["predicted"] == "1.43 x"
    assert row["over its peer"] == "1.25 x (transformers, assistant_model)" and row["published"].startswith("1.52 x")


def test_where_the_claim_counts_forwards_the_speed_is_the_clocks(results):
    row = row_of(results, "lookahead, code and lists")
    assert row["speedup"] == "1.09 x" and row["predicted"] == row["tokens per pass"] == row["over its peer"] == "-"


def test_of_several_settings_the_one_that_is_predicted_to_be_fastest_is_shown(results):
    update(results / "claims.json", [make_claim("layerskip/vs-plain", 1.4)])
    raw = {"predicted": {"full": 1.5, "trimmed": 1.6}}
    raw["measured"] = {"full": [1.7, 1.6, 1.8], "trimmed": [1.4, 1.3, 1.5]}
    (results / "layerskip-vs-plain.json").write_text(json.dumps(raw))
    row = row_of(results, "LayerSkip")
    assert (row["speedup"], row["predicted"]) == ("1.4 x", "1.6 x")


def test_what_was_not_measured_has_no_row(results):
    assert [row[0] for row in technique_cells(results)] == ["draft model", "lookahead, code and lists"]
    assert technique_cells(results / "nowhere") == []


def test_every_technique_rests_on_claims_that_are_registered():
    from bench import run  # registers them all

    named = {claim for of in KNOWN for claim in (of.speed, of.peer) if claim}
    assert named <= set(run.CLAIMS)
