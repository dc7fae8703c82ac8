"""The claims of the ladder on a tiny model: the best configuration that counts, and peers that are installed."""

import copy
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.benches import TOKENS, asks, with_heads
from support.drafts import perturbed

from bench import common, ladder
from bench.common import NotMeasured, Run
from bench.medusa import Fitted
from lessons_lib.decoding.probing import logits_along
from lessons_lib.decoding.proposers.tree_shape import regular
from lessons_lib.measure.clock import Timeline
from lessons_lib.measure.machine import Hardware
from lessons_lib.models import LanguageModel

FULL, QUICK = Run(quick=False), Run(quick=True)

RATES = Hardware("cpu", "a machine", 1, 1e9, 1e9, {common.DTYPE: 1e9}, {common.DTYPE: 1e9})

NAMES = {"compiled", "W8A16", "W4A16"} | {f"{of} + {who}" for of in ("compiled", "W8A16") for who in ladder.PROPOSERS}

FITTED = Fitted(regular(2), {1: 1.0, 3: 1.5, 11: 2.0}, {1: 0.0, 3: 0.5})


class Peer:
    """Another engine that needs a second for the prompt, then as much for each token as is set. says: its logits
    after each token, those of this target."""

    version, instructions, parts = "1.2.3", "AVX = 1", {"Q4_1": 3, "Q8_0": 4}

    def __init__(self, each: float, says=None):
        self.each, self.says = each, says

    def write(self, ids, new):
        return [5] * new, Timeline(0.0, [1 + self.each * i for i in range(new)])

    def logits(self, ids):
        return logits_along(self.says, ids, len(ids))


def surer(model):
    """The model's target with logits far too sure of themselves: the same argmaxes, a much higher perplexity."""
    network = copy.deepcopy(model.network)
    network.lm_head.weight = torch.nn.Parameter(30 * network.lm_head.weight.detach())
    return replace(model, network=network).target()


@pytest.fixture
def bench(monkeypatch):
    """bench/ladder.py with a tiny float64 model as every target, the last of which is far off in perplexity."""
    model = with_heads(monkeypatch)
    made = {"compiled": model.target(), "W8A16": model.target(), "W4A16": surer(model)}
    for target in made.values():
        target.capacity, target.widths, target.compile_seconds, target.problem = 64, [1, 3, 11], {1: 2.0}, None
    monkeypatch.setattr(ladder, "targets", lambda quick: dict(list(made.items())[: 2 if quick else 3]))
    monkeypatch.setattr(ladder, "peers", lambda: {})
    monkeypatch.setattr(ladder, "light", lambda: "W8A16")
    monkeypatch.setattr(ladder, "bytes_read", lambda decoder: 8.0 * model.shape.weights)
    monkeypatch.setattr(ladder.machine, "probe", lambda device, dtypes: RATES)
    monkeypatch.setattr(ladder.medusa, "fitted", lambda of, repeats: FITTED)
    monkeypatch.setattr(ladder, "host_times", lambda repeats: (0.001, 0.002))
    launch = {"transformers": 0.01, "decoder": 0.005, "compiled": 0.0005}
    monkeypatch.setattr(ladder, "launch_times", lambda shape, dtype, cached, repeats: launch)
    monkeypatch.setattr(ladder, "text", lambda: "the lamp burns all night; " * 20)
    monkeypatch.setattr(ladder, "static_and_compiled", lambda capacity: {})
    asks(monkeypatch, ("writing", *ladder.GROUNDED) * 2)
    monkeypatch.setattr(ladder, "KINDS", {kind: (of, 1) for kind, (of, _) in ladder.KINDS.items()})
    draft = LanguageModel(perturbed(model.network, 0.03), model.tokenizer, "tiny-draft", "cpu", torch.float64)
    drafting = draft.target()
    monkeypatch.setattr(ladder, "small", lambda: drafting)
    for cached in (ladder.rows, ladder.configurations, ladder.readings, ladder.drafter):
        cached.cache_clear()
    return ladder


def test_all_configurations_take_turns_on_free_and_on_grounded_questions(bench):
    measured = bench.free(FULL)
    free, grounded = bench.rows(FULL, "free"), bench.rows(FULL, "grounded")
    assert {row["category"] for row in free} == {"writing"} and {row["category"] for row in grounded} == set(
        bench.GROUNDED
    )
    assert measured.facts["questions"] == free and len(free) == 1 and len(grounded) == 3
    names = {"generate", "generate, compiled", "decoder"} | NAMES
    for row in free:
        assert {name for name, made in row.items() if isinstance(made, dict)} == names
        assert all(row[name]["tokens"] == TOKENS and row[name]["prefill"] > 0 for name in names)
        assert all(row[name]["equal"] is (True if " + " in name else None) for name in names)
        assert len(row["new"]) == TOKENS and row["prompt"]
    json.dumps(measured.facts)


def arbitrary_ids(times: dict[str, float]) -> dict:
    """A row of a text of 11 tokens, the first after a second, by configuration the seconds after it."""
    made = {
        name: {"tokens": 11, "seconds": 1.0 + t, "prefill": 1.0, "logit_gap": 0.5, "forward_passes": 6}
        for name, t in times.items()
    }
    return {"category": "writing", "prompt": [1, 2], "new": [3, 4, 3, 4]} | made


ALL = {"generate": 10.0, "generate, compiled": 9.0, "decoder": 5.0} | dict.fromkeys(sorted(NAMES), 4.0)


@pytest.fixture
def timed(bench, monkeypatch):
    """One made-up row for each kind: the fastest configuration does not count, drafting helps grounded prompts.

    Of llama.cpp's formats Q4_0 is the fastest, and far off in perplexity; Q4_K_M is faster than Q4_1 and as good.
    """
    free = ALL | {
        "W4A16": 0.5,
        "W8A16": 2.0,
        "W8A16 + adaptive lookup": 2.5,
        "llama.cpp Q4_1": 4.0,
        "llama.cpp Q4_1 + lookup of 2": 8.0,
        "llama.cpp Q4_0": 1.0,
        "llama.cpp Q4_0 + lookup of 2": 1.0,
        "llama.cpp Q4_K_M": 3.0,
        "llama.cpp Q4_K_M + lookup of 2": 5.0,
    }
    grounded = free | {
        "W8A16 + adaptive lookup": 1.0,
        "W4A16": 0.25,
        "llama.cpp Q4_1 + lookup of 2": 2.0,
        "llama.cpp Q4_K_M + lookup of 2": 1.5,
    }
    rows = {"free": [arbitrary_ids(free)], "grounded": [arbitrary_ids(grounded)]}
    monkeypatch.setattr(bench, "rows", lambda run, kind: rows[kind])
    good = common.model().target()
    says = {name: surer(common.model()) if "Q4_0" in name else good for name in free if name.startswith("llama.cpp")}
    monkeypatch.setattr(ladder, "peers", lambda: {name: Peer(0.1, of) for name, of in says.items()})
    monkeypatch.setattr(bench.llamacpp, "missing", lambda: "")
    return bench


@pytest.mark.parametrize("claim, best, peer, value, requests", [
    ("free", "W8A16", "generate", 5, 11 / 3),
    ("grounded", "W8A16 + adaptive lookup", "generate", 10, 11 / 2),
    ("plain", "W8A16", "llama.cpp Q4_1", 2, 5 / 3),
    ("grounded_peer", "W8A16 + adaptive lookup", "llama.cpp Q4_1 + lookup of 2", 2, 3 / 2),
    ("plain_best", "W8A16", "llama.cpp Q4_K_M", 1.5, 4 / 3),
    ("grounded_best", "W8A16 + adaptive lookup", "llama.cpp Q4_K_M + lookup of 2", 1.5, 2.5 / 2),
])  # fmt: skip
def test_the_best_configuration_that_counts_is_set_against_the_better_of_theirs(
    timed, claim, best, peer, value, requests
):
    measured = getattr(timed, claim)(FULL)
    assert (measured.facts["best"], measured.facts["peer"]) == (best, peer)
    assert measured.ratio.value == pytest.approx(value)
    assert measured.facts["requests"][0] == pytest.approx(requests)
    assert measured.note.startswith(f"{best} ")
    assert "logit gap under the unquantized weights at most 0.5" in measured.note
    assert measured.facts["tokens_per_pass"] == 10 / 5
    rows = {
        row["configuration"]: row
        for row in measured.facts["configurations"]["grounded" if "grounded" in claim else "free"]
    }
    predicted = rows[best]["predicted"] / rows[peer]["predicted"] if peer == "generate" else None
    assert measured.facts.get("predicted") == predicted


def readings(monkeypatch, perplexities: dict[str, float]) -> None:
    """Perplexities over that of the configurations that count, which is 0.6% above fp32's; int4's does not count."""
    own = {"fp32": 0.994, "decoder": 1.0, "compiled": 1.0, "W8A16": 1.0, "W4A16": 9.0}
    found = {name: SimpleNamespace(perplexity=10 * value) for name, value in (own | perplexities).items()}
    monkeypatch.setattr(ladder, "readings", lambda quick: found)
    monkeypatch.setattr(ladder, "quality_facts", lambda quick: {})


@pytest.mark.parametrize("q4_0, q4_k_m, peer", [
    (1.02, 1.02, "llama.cpp Q4_1"), (1.02, 1.005, "llama.cpp Q4_K_M"), (0.9, 1.005, "llama.cpp Q4_0"),
])  # fmt: skip
def test_the_fastest_format_counts_whose_perplexity_is_at_most_1_percent_above_our_bests(
    timed, monkeypatch, q4_0, q4_k_m, peer
):
    readings(monkeypatch, {"llama.cpp Q4_1": 1.0, "llama.cpp Q4_0": q4_0, "llama.cpp Q4_K_M": q4_k_m})
    measured = timed.plain_best(FULL)
    assert measured.facts["peer"] == peer
    assert f"llama.cpp Q4_0 10 tokens/s at {q4_0:.3f} times our perplexity" in measured.note
    assert measured.facts["formats"]["llama.cpp Q4_0"] == {"speed": 10.0, "perplexity": pytest.approx(q4_0)}


def test_a_prediction_is_bytes_over_bandwidth_the_overhead_of_a_compiled_step_and_the_loop(timed):
    """3 steps after the first token of the made-up text, which lies after a prompt of 2."""
    rows = {row["configuration"]: row for row in timed.free(FULL).facts["configurations"]["free"]}
    shape, element = common.model().shape, ladder.DTYPES[common.DTYPE].itemsize
    moved = lambda S: 8 * shape.weights + element * S * shape.kv_elements(1)  # noqa: E731
    forward = lambda S: moved(S) / RATES.read_bandwidth + 0.0005  # noqa: E731
    assert rows["compiled"]["predicted"] == pytest.approx(3 / sum(forward(S) + 0.001 for S in (3, 4, 5)))
    each = FITTED.tree.expected_tokens(ladder.medusa.accuracies())
    steps = [1.5 * forward(2 + round(i * each)) for i in range(round(3 / each))]  # FITTED: 3 rows cost 1.5 of one
    heads = 0.5 * forward(ladder.CACHED)
    expected = len(steps) * each / sum(step + 0.001 + heads for step in steps)
    assert rows["compiled + medusa"]["predicted"] == pytest.approx(expected)


def test_quality_is_of_the_targets_and_what_is_too_far_off_does_not_count(bench):
    assert ladder.good_enough(False) == {"generate", "generate, compiled", "decoder", "compiled", "W8A16"}
    found = ladder.quality_facts(False)["quality"]
    assert found["compiled"]["change"][0] == pytest.approx(1) and found["W4A16"]["change"][0] > 1.01
    assert {*found} == {"decoder", "compiled", "W8A16", "W4A16"}
    assert found["W4A16"]["agreement"] == 1  # as sure as it is, its argmaxes are the same


def test_without_llama_cpp_its_claims_say_how_to_have_it_before_anything_is_measured(bench, monkeypatch):
    monkeypatch.setattr(bench.llamacpp, "missing", lambda: "install it.")
    monkeypatch.setattr(bench, "rows", lambda run, kind: pytest.fail("this takes minutes"))
    for claim in (bench.plain, bench.grounded_peer, bench.plain_best, bench.grounded_best):
        with pytest.raises(NotMeasured, match="not measured: install it."):
            claim(QUICK)


@pytest.mark.parametrize("v, tokens", [({1: 1.0, 5: 1.1, 11: 9.0}, 4), ({1: 1.0, 5: 8.0, 11: 9.0}, 0), (None, 10)])
def test_the_adaptive_lookup_goes_by_the_curve_that_was_timed_beside_the_text_else_by_the_predicted_one(
    bench, v, tokens
):
    found = ladder.proposer("adaptive lookup", ladder.targets(True)["compiled"], FULL, v)
    found.reset(common.eager(), [1])
    assert [found.limit(n) for n in range(1, 6)] == [tokens] * 5 and found.num_tokens == 10
