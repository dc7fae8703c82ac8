"""Widgets: sliders that work by keyboard, a still form, and the numbers that they show."""

from dataclasses import replace

import IPython.display
import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib import PromptLookup
from lessons_lib.course import (
    assisted,
    attention,
    kv_cache,
    ladder,
    lookahead,
    medusa,
    prompt_lookup,
    quantization,
    sparsity,
    streaming,
)
from lessons_lib.course.assisted import Drafted, written
from lessons_lib.course.figures import axes
from lessons_lib.course.widgets import Slider, show
from lessons_lib.decoding.prediction import Recording, replay, replay_draft
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.cost import StepCost, expected_tokens
from lessons_lib.quantization.formats import rounding
from lessons_lib.quantization.sizes import step_bytes

SMOL = CONFIGS["smollm2-135m"]
GIB = 2**30
CONTROLS = {"n": Slider("length", (16, 1024), 16, "tokens"), "kind": Slider("kind", ("plain", "fast"), "plain")}


def draw(n, kind):
    return axes(), f"{kind} with {n}"


@pytest.fixture
def shown(monkeypatch):
    calls = []
    monkeypatch.setattr(IPython.display, "display", lambda shown, **metadata: calls.append((shown, metadata)))
    return calls


def test_a_batch_run_shows_pngs_of_the_stored_settings_completed_by_the_starts(shown, monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    show(CONTROLS, draw)
    show(CONTROLS, draw, stored=[{"n": 1024}, {"kind": "fast"}])
    assert [data["text/plain"] for data, _ in shown] == ["plain with 16", "plain with 1024", "fast with 16"]
    assert all("image/png" in data and metadata["metadata"]["image/png"]["alt"] for data, metadata in shown)


def test_live_the_figure_and_its_alt_text_follow_the_sliders(shown, monkeypatch):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    before = plt.get_fignums()
    show(CONTROLS, draw)
    [(box, _)] = shown
    length, kind, picture = box.children
    assert [label for label, _ in length.options] == ["16 tokens", "1,024 tokens"]
    assert 'alt="plain with 16"' in picture.value
    length.value, kind.value = 1024, "fast"
    assert 'alt="fast with 1024"' in picture.value
    assert plt.get_fignums() == before  # redrawing leaves no open figures


def test_a_start_outside_the_values_is_refused():
    with pytest.raises(ValueError, match="'length' cannot start at 5: choose from 16, 1024"):
        Slider("length", (16, 1024), 5)


# What the widgets compute


def test_llama_2_with_its_whole_context_needs_two_gib_a_request():
    need = kv_cache.fit(CONFIGS["llama-2-7b"], "bf16", batch=4, context=4096, memory=24e9)
    assert need.cache == 4 * 2 * GIB and need.requests == 4
    assert need.weights == pytest.approx(6_738_415_616 * 2, rel=1e-3)  # published count; norms are ignored
    assert "fits; room for 4" in kv_cache.draw_kv_cache("llama-2-7b", "bf16", 4, 4096, 24)[1]
    assert "does not fit; room for 4" in kv_cache.draw_kv_cache("llama-2-7b", "bf16", 6, 4096, 24)[1]


def test_quantized_weights_keep_a_cache_of_16_bits_and_fp32_weights_double_it():
    cache = {dtype: kv_cache.fit(SMOL, dtype, 1, 1000, 1e9).cache for dtype in kv_cache.DTYPES}
    assert cache == {"fp32": 46_080_000, "bf16": 23_040_000, "int8": 23_040_000, "int4": 23_040_000}


def test_a_context_beyond_the_models_own_is_cut_to_it_and_the_figure_says_so():
    ax, alt = kv_cache.draw_kv_cache("pythia-1.4b", "bf16", 1, 32768, 16)
    assert "1 requests of 2,048 tokens, the model's most and less than 32,768," in alt and "cache 0.403 GB" in alt
    assert ax.get_yticklabels()[0].get_text() == "1 × 2,048\ntokens\n(the model's most)"


def test_the_bytes_of_a_tiling_by_hand():
    # 4 tokens of 2 channels, blocks of 2, causal: 44 elements (test_traffic), naive 96, 2 bytes each; a tile holds
    # queries, keys and values in 2 bytes, scores and output in 4
    assert attention.tiling(2, 2, 4, 2) == (2 * 44, 2 * 96, 2 * (4 + 4 + 4) + 4 * (4 + 4))


TEXT = Drafted([1, 2, 3, 4, 5, 6], [2, 3, 9, 5, 6])  # one wrong draft token: 9 for 4


def test_who_wrote_what_by_hand():
    assert written(TEXT, 4) == [
        ([1], "own"), ([2, 3], "accepted"), ([9], "rejected"), ([4], "own"), ([5], "accepted"), ([6], "own"),
    ]  # fmt: skip
    assert written(TEXT, 1) == [
        ([1], "own"), ([2], "accepted"), ([3], "own"), ([9], "rejected"), ([4], "own"), ([5], "accepted"), ([6], "own"),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30), st.integers(1, 9))
def test_what_is_not_rejected_is_the_text_and_each_step_ends_with_the_targets_own(pairs, gamma):
    text = Drafted([0, *(token for token, _ in pairs)], [draft for _, draft in pairs])
    runs = written(text, gamma)
    assert sum((ids for ids, who in runs if who != "rejected"), []) == text.tokens
    assert runs[-1][1] == "own" and all(len(ids) <= gamma for ids, who in runs if who == "accepted")
    for (_, who), (_, after) in zip(runs, runs[1:], strict=False):
        assert after == "own" if who == "rejected" else who == "own" or after in ("own", "rejected")


def test_a_draft_length_is_predicted_from_alpha_and_counted():
    rows = {row["gamma"]: row for row in assisted.speeds(TEXT, 0.5, None)}
    assert list(rows) == list(assisted.GAMMAS)
    assert rows[2]["predicted"] == pytest.approx(expected_tokens(0.8, 2) / 2)
    assert rows[2]["counted"] == pytest.approx(5 / (1 + 2 * 0.5 + 1 + 1 * 0.5))  # a step of 2 draft tokens, one of 1


COPY, FRESH, V = Recording([1, 2, 3, 4], [1, 2, 3, 4, 1]), Recording([1], [2, 3, 4]), {1: 1.0, 4: 2.0}


def test_prompt_lookup_is_counted_by_hand_and_recordings_of_a_kind_add_up():
    settings = dict(max_ngram=2, num_tokens=10, rule="transformers")
    copied, fresh = prompt_lookup.counts({"copy": [COPY], "free": [FRESH]}, V, **settings)
    assert copied == {"kind": "copy", "tokens_per_pass": 4.0, "speed": 2.0}  # one forward pass of 1 + 3 rows
    assert fresh == {"kind": "free", "tokens_per_pass": 1.0, "speed": 1.0}
    [both] = prompt_lookup.counts({"both": [COPY, FRESH]}, V, **settings)
    assert both == {"kind": "both", "tokens_per_pass": 6 / 3, "speed": 6 / 4}


def test_no_lookup_rule_is_gated():
    wrong = Recording([1, 2, 3], [token for k in range(4, 40) for token in (1, k)])  # each copy after a 1 is wrong
    [always] = prompt_lookup.counts({"k": [wrong]}, V, rule="recent")
    gated = StepCost(v=V).speed(replay(wrong, PromptLookup(rule="recent")))  # the proposer's own default
    assert always["speed"] < gated <= 1.0


@pytest.mark.parametrize("sizes, fed", [((5, 4, 5), 30), ((15, 5, 15), 120), ((7, 5, 7), 56), ((1, 3, 1), 4)])
def test_a_lookahead_step_feeds_as_many_tokens_as_published_and_is_priced_by_the_width_curve(sizes, fed):
    _, alt = lookahead.draw_lookahead({1: 1.0, 31: 4.0}, *sizes)
    price = 1 + (fed - 1) / 10
    assert f"{fed} tokens fed, at most {sizes[1]} committed" in alt
    assert fed > 31 or f"pays above {price:.2f} tokens a step" in alt


@pytest.mark.parametrize("nodes, heads, said", [
    (4, 2, "4 nodes, 2 deep: 2.22 tokens a step expected, v(5) = 1.40, speed 1.48 of plain. Draft tokens: 2 of head 1"),
    (2, 1, "2 nodes, 1 deep: 1.80 tokens a step expected, v(3) = 1.20, speed 1.38 of plain. Draft tokens: 2 of head"),
    (0, 2, "0 nodes, 0 deep: 1.00 tokens a step expected, v(1) = 1.00, speed 1.00 of plain. Draft tokens: none."),
])  # fmt: skip
def test_the_best_tree_within_the_sliders_has_its_tokens_its_price_and_the_speed_that_follows(nodes, heads, said):
    accuracies = [[0.6, 0.2, 0.1], [0.5, 0.2]]
    assert said in medusa.draw_medusa(accuracies, {1: 1.0, 11: 2.0}, 0.1, nodes, top_tokens=3, heads=heads)[1]


def test_sliders_become_names_of_formats_and_each_is_one():
    name_of, names = quantization.name_of, quantization.names()
    assert name_of("affine", 4, 32) == "int4 g32 affine" and name_of("absmax", 8, "row") == "int8 row absmax"
    assert name_of("nf4", 8, 64) == "nf4 g64" and name_of("fp8", 2, "row") == "fp8 row"
    assert len(names) == len(set(names)) == 7 * 3 * 2 + 3 + 3
    for name in names:
        rounding(name)(torch.ones(2, 192))
    widths = SMOL.hidden_size, SMOL.intermediate_size
    assert all(columns % group == 0 for group in quantization.GROUPS[:-1] for columns in widths)


def test_the_quantization_widget_says_bits_error_perplexity_bytes_and_speed():
    weight = torch.randn(32, 576, generator=torch.Generator().manual_seed(0))
    given = weight, SMOL, lambda read: 1 / (0.01 + read / 1e9), {"int4 g32 affine": 30.5, "exact": 29.0}
    measured, other = (quantization.draw_quantization(*given, "affine", 4, group)[1] for group in (32, 64))
    read = step_bytes(SMOL, "int4 g32", "int8")
    assert "int4 g32 affine: 5.00 bits a weight, error 7." in measured and "perplexity not measured" in other
    assert f"perplexity 30.5 (29 unrounded), {read / 1e6:.1f} MB a step" in measured
    assert f"{1 / (0.01 + read / 1e9):.0f} tokens/s predicted" in measured


SLOW = StepCost(weight_bytes=100, bandwidth=100)  # a second a step
FAST = StepCost(weight_bytes=25, bandwidth=100, v={1: 1.0, 3: 2.0})  # a quarter, three rows a half
COPIED, NEW = Recording([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9]), Recording([1, 2, 3], [4, 5, 6])


@pytest.fixture
def parts():
    lookup = {"lookup": lambda text, gamma: replay(text, PromptLookup(gamma, rule="transformers"))}
    return ladder.Parts({"slow": SLOW, "fast": FAST}, {"fresh": [NEW], "copied": [COPIED]}, lookup, {"lookup": 0.0})


def test_without_draft_tokens_a_token_takes_a_step(parts):
    found = ladder.rows(parts, "fast", "lookup", "copied", 0)
    assert [(row["configuration"], row["below"]) for row in found] == [("slow", None), ("fast", "slow")]
    assert [row["speed"] for row in found] == pytest.approx([1, 4])
    assert [row["configuration"] for row in ladder.rows(parts, "slow", "lookup", "copied", 0)] == ["slow"]


def test_draft_tokens_are_counted_on_the_kind_and_priced_by_the_width(parts):
    """2..7 are copied in two steps of two draft tokens; then 8 and 9 are no copy: a step with a draft, one without."""
    stats = replay(COPIED, PromptLookup(2, rule="transformers"))[1:]
    seconds = sum({1: 0.25, 2: 0.375, 3: 0.5}[step.num_input_tokens] for step in stats)
    *_, drafted = ladder.rows(parts, "fast", "lookup", "copied", 2)
    assert drafted["below"] == "fast" and drafted["speed"] == pytest.approx(8 / seconds) and drafted["speed"] > 4.5
    *_, useless = ladder.rows(parts, "fast", "lookup", "fresh", 2)
    assert useless["speed"] == pytest.approx(4)


def test_a_draft_token_costs_what_it_costs(parts):
    drafts = replace(parts, counts={"draft": lambda text, gamma: replay_draft([True, True, False], Constant(gamma))})
    free = ladder.rows(replace(drafts, draft={"draft": 0.0}), "fast", "draft", "fresh", 2)[-1]["speed"]
    priced = ladder.rows(replace(drafts, draft={"draft": 0.5}), "fast", "draft", "fresh", 2)[-1]["speed"]
    assert (free, priced) == pytest.approx((3 / 0.5, 3 / 1.5))


def test_the_limits_of_skipping_are_those_of_the_shape_and_shrink_with_the_rows_of_a_step():
    assert (
        "50% zero in one row: 50% skipped by all; times as fast at most: 1.42 (MLP, known beforehand), "
        "1.25 (gate computed first), 1.11 (intermediate vector first), 1.65 (inputs of every matmul)"
    ) in sparsity.draw_limits(SMOL, 50, 1)[1]
    said = "90% zero in each of 5 rows: 59% skipped by all; times as fast at most: 1.54 (MLP"
    assert said in sparsity.draw_limits(SMOL, 90, 5)[1]


def test_a_streaming_cache_is_compared_with_a_window_computed_anew_on_the_tokens_after_the_window_was_full(monkeypatch):
    ours = {"mean": [9.0, 9.0, 9.0, 9.0, 2.0, 3.0, 4.0, 3.0], "at": [9.0] * 5 + [2.5] * 20}
    curves = {"1+256": ours, "dense": {"mean": [2.0] * 8}, "recomputed 260": {"at": [0.0] * 5 + [2.25] * 22}}
    stored = {"block": 256, "every": 64, "texts": {"wikitext": curves}}
    monkeypatch.setattr(streaming, "stored_curves", lambda: stored)
    ax, alt = streaming.draw_streaming(1, 256)
    assert "1 sink and a window of 256: mean loss from token 1,024 on: 3.00; +0.25 over" in alt
    dense, line = ax.get_lines()[:2]
    assert line.get_xdata().tolist() == [512, 768, 1024, 1280, 1536]
    assert line.get_ydata().tolist() == pytest.approx([9, 7.25, 5.75, 4.5, 3.0]) and set(dense.get_ydata()) == {2.0}
