"""The claims of LayerSkip on a tiny float64 model: counts, texts, the choice of exit and length, and the quality."""

import json

import pytest
import torch
from support.benches import Letters

from bench import layerskip
from bench.common import Run
from lessons_lib import EarlyExit, generate
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.training.collect import Text
from lessons_lib.training.text_to_sql import text_to_sql

ANSWER = 12
CACHED = (layerskip.model, layerskip.target, layerskip.vocabulary, layerskip.settings, layerskip.rows)


def encode(tokenizer, examples):
    return [Text(f"sql/{i}", tokenizer(one.prompt[-40:] + one.sql).input_ids, 40) for i, one in enumerate(examples)]


@pytest.fixture
def bench(monkeypatch):
    """bench/layerskip.py with a tiny model of 12 layers, prompts of 40 letters, and a width curve that is set."""
    of = LanguageModel(tiny(12, context=2048), Letters(), "tiny", "cpu", torch.float64)
    for function in CACHED:
        function.cache_clear()
    monkeypatch.setattr(layerskip, "load", lambda *given, **options: of)
    monkeypatch.setattr(layerskip, "encode", encode)
    monkeypatch.setattr(layerskip, "ANSWER", ANSWER)
    monkeypatch.setattr(layerskip, "EXITS", range(2, 12))
    monkeypatch.setattr(layerskip, "SHORT", 48)
    monkeypatch.setattr(layerskip, "LEARNED_FROM", 20)
    monkeypatch.setattr(layerskip, "costs_of", lambda target, widths, *given: {w: 1 + 0.05 * (w - 1) for w in widths})
    yield layerskip
    for function in CACHED:
        function.cache_clear()


def test_all_methods_write_plain_decodings_text_and_the_counts_are_those_of_decoding(bench):
    run = Run(quick=True)
    tokens, plain, theirs = bench.tokens(run), bench.vs_plain(run), bench.vs_transformers(run)
    rows, chosen = tokens.facts["questions"], tokens.facts["settings"]
    assert len(rows) == bench.few(run, bench.MEASURED_ON) == 6
    names = ("plain", "four", "full", "trimmed", "adaptive", "plain theirs", "theirs", "theirs by default")
    assert all(row[name]["tokens"] == ANSWER and row[name]["logit_gap"] < 1e-4 for row in rows for name in names)
    assert not any(tokens.facts["parted"][name] for name in ("four", "full", "trimmed", "adaptive", "theirs"))
    # tokens per pass of four draft tokens from the chosen exit
    passes = 0
    for example in text_to_sql(6, "test"):
        ids = bench.model().tokenizer(example.prompt).input_ids
        by = EarlyExit(chosen["four"], 4)
        passes += len(generate(bench.target(), ids, by, max_new_tokens=ANSWER, min_new_tokens=ANSWER).stats) - 1
    assert tokens.ratio.value == pytest.approx(6 * (ANSWER - 1) / passes)
    assert chosen["four"] <= bench.EARLY and chosen["vocabulary"] == 48
    for claim in (tokens, plain, theirs):
        json.dumps(claim.facts)
    assert set(plain.facts["predicted"]) == set(plain.facts["measured"]) == {"full", "trimmed"}
    assert plain.facts["adaptive"][0] > 0
    assert (
        plain.ratio.value == plain.facts["measured"][max(plain.facts["predicted"], key=plain.facts["predicted"].get)][0]
    )
    full, early = zip(*(row["theirs, passes"] for row in rows), strict=True)
    assert set(theirs.facts["theirs_over_plain"]) == {"theirs", "theirs by default", "before training"}
    assert sum(full) <= 6 * ANSWER and sum(early) <= chosen["full"]["gamma"] * sum(full)


def test_the_prediction_lies_between_the_price_of_full_drafts_and_the_tokens_per_pass(bench):
    chosen = bench.settings(Run(quick=True))
    for name in ("full", "trimmed"):
        of = chosen[name]
        tau = of["tau"][of["exit_layer"]][of["gamma"] - 1]
        assert tau / (of["gamma"] * of["c"] + chosen["v"][of["gamma"] + 1]) * (1 - 1e-9) <= of["speed"] <= tau
    less, more = chosen["trimmed"], chosen["full"]
    assert less["c"] < more["c"] or less["exit_layer"] > more["exit_layer"]


def test_the_quality_comes_from_the_card(bench, monkeypatch):
    shares = {"base": [0.0] * 30, "layerskip": [0.5] * 29 + [0.925], "control": [0.0] * 29 + [0.93]}
    card = {"test": {name: {"exact_match": of} for name, of in shares.items()}}
    card["hard"] = {name: {"exact_match": [0.0, of]} for name, of in {"layerskip": 0.5, "control": 0.75}.items()}
    card["quality"] = {"value": 0.5, "low": -0.2, "high": 1.2, "texts": 2000}
    monkeypatch.setattr(bench, "read_card", lambda name: card)
    found = bench.quality(Run(quick=False))
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (0.5, -0.2, 1.2)
    assert "ours 6: 50.00, 10: 50.00, 15: 50.00, 20: 50.00, 30: 92.50" in found.note
    assert "random strings, ours 50.0, control 75.0" in found.note
    card["quality"] = {"value": 0.0, "low": 0.0, "high": 0.0, "texts": 1000}  # none differs: the rule of three
    found = bench.quality(Run(quick=False))
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (0, -0.3, 0.3)
