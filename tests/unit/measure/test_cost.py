"""The cost model: formulas against worked numbers, published figures, counted FLOPs, and a simulation."""

import dataclasses
import math
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure import cost, machine
from lessons_lib.measure.clock import Samples
from lessons_lib.measure.config import CONFIGS, DATA_SHEETS, ModelConfig
from lessons_lib.measure.cost import (
    LinearCost,
    Load,
    RooflineCost,
    acceptance_rate,
    best_gamma,
    break_even,
    break_even_tokens,
    crossing,
    early_exit_cost,
    expected_tokens,
    fit,
    padded_cost,
    walltime_factor,
    width_cost,
)
from lessons_lib.serving.scheduler import Plan, Row
from lessons_lib.serving.simulator import load_of

SMOL = CONFIGS["smollm2-135m"]


@pytest.fixture(scope="module")
def tiny():
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=80, vocab_size=96, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), ModelConfig.from_transformers(config)


def dense_attention(shape: ModelConfig, tokens: int) -> int:
    """FLOPs of attention that computes masked pairs too, as eager attention does: 4·L·H·d·T²."""
    return 4 * shape.num_layers * shape.num_heads * shape.head_dim * tokens * tokens


def counted(model, tokens: int, **kwargs) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.long), **kwargs)
    return counter.get_total_flops()


def test_counted_flops_of_a_prefill_equal_the_formula_with_dense_attention(tiny):
    model, shape = tiny
    matrices = cost.flops_prefill(shape, 7) - 4 * shape.num_heads * shape.head_dim * shape.attended(7)
    dense = dense_attention(shape, 7)
    assert counted(model, 7, logits_to_keep=1) == matrices + dense
    causal = 4 * shape.num_heads * shape.head_dim * shape.attended(7)
    assert dense == causal * 2 * 7 / (7 + 1)  # what masking leaves unused


def test_counted_flops_of_a_decode_step_equal_the_formula(tiny):
    model, shape = tiny
    with torch.no_grad():
        cache = model(torch.zeros(1, 9, dtype=torch.long)).past_key_values
    # ten keys: nine cached, and the token's own
    assert counted(model, 1, past_key_values=cache) == cost.flops_decode(shape, 1, 10)


def test_counted_flops_of_generating_without_a_cache_equal_the_sum_of_prefills(tiny):
    model, shape = tiny
    pairs = 4 * shape.num_heads * shape.head_dim
    total = expected = 0
    for length in range(5, 9):  # prompt 5, four new tokens
        total += counted(model, length, logits_to_keep=1, use_cache=False)
        extra = dense_attention(shape, length) - pairs * shape.attended(length)
        expected += cost.flops_prefill(shape, length) + extra
    assert total == expected
    prefills = sum(cost.flops_prefill(shape, length) for length in range(5, 9))
    assert cost.flops_generate(shape, 5, 4, cached=False) == prefills


def test_smollm2_attention_costs_as_much_as_the_matrices_at_3891_tokens():
    assert cost.flops_decode(SMOL) == 268_959_744
    assert cost.flops_decode(SMOL, 1, 1) - cost.flops_decode(SMOL) == 69_120
    assert cost.flops_decode(SMOL) // 69_120 == 3_891


def test_smollm2_reads_as_much_cache_as_weights_at_11674_tokens_in_flight():
    weights = cost.bytes_decode(SMOL)
    assert weights == 268_959_744
    assert cost.bytes_decode(SMOL, 2, 5_837) / weights == pytest.approx(2, abs=1e-4)
    assert cost.bytes_prefill(SMOL, 100) - weights == 100 * 23_040


@pytest.mark.parametrize(
    "prompt, new, uncached, cached", [(32, 128, 2649.7, 41.9), (512, 128, 17122, 157.1), (128, 1024, 156694, 348.2)]
)
def test_flops_of_generating_with_and_without_a_cache_equal_the_published_totals(prompt, new, uncached, cached):
    assert cost.flops_generate(SMOL, prompt, new, cached=False) / 1e9 == pytest.approx(uncached, rel=5e-5)
    assert cost.flops_generate(SMOL, prompt, new) / 1e9 == pytest.approx(cached, rel=2e-3)


@pytest.mark.parametrize("name, ridge", [("A100-40GB", 201), ("A100-80GB", 153), ("H100-SXM", 295), ("H200", 206)])
def test_ridge_points_of_the_data_sheets(name, ridge):
    assert round(DATA_SHEETS[name].ridge) == ridge


def test_a_decode_step_is_predicted_from_the_rates_of_its_dtype():
    rates = SimpleNamespace(matvec_bandwidth={"bf16": 10e9, "fp32": 20e9}, matmul_flops={"bf16": 1e9, "fp32": 50e9})
    assert cost.predict_decode_step(SMOL, rates, "fp32") == pytest.approx(SMOL.weights * 4 / 20e9)  # memory
    assert cost.predict_decode_step(SMOL, rates, "bf16") == pytest.approx(cost.flops_decode(SMOL) / 1e9)  # arithmetic


def test_the_limit_is_bytes_or_flops_at_the_best_rates_seen():
    rates = SimpleNamespace(read_bandwidth=10.0, matvec_bandwidth={"bf16": 1.0}, matmul_flops={"bf16": 40.0})
    assert cost.limit(10, 20, rates, "bf16") == 2  # memory; the slower matrix-vector products do not count
    assert cost.limit(400, 20, rates, "bf16") == 10  # arithmetic, at the square product's rate
    rates.matvec_bandwidth["fp32"] = 40.0  # another product read faster, in whatever format: bytes are bytes
    assert cost.limit(10, 20, rates, "bf16") == 0.5


def test_quantized_weights_keep_a_16_bit_cache():
    assert [cost.cache_element_bytes(d) for d in ("fp32", "bf16", "int8", "int4")] == [4, 2, 2, 2]


SHAPE = ModelConfig("toy", 2, 8, 2, 1, 4, 16, 100, 64)


def test_rates_follow_from_the_faster_of_two_timings(monkeypatch):
    asked, took = [], iter([4.0, 1.0, 3.0, 5.0])
    monkeypatch.setattr(machine, "linears", lambda *args: asked.append(args[3:]) or next(took))
    bandwidth, flop_rate = machine.calibrate(SHAPE, "bf16", "cpu", 8)
    assert asked == [(1,)] * 2 + [(8,)] * 2
    assert bandwidth == SHAPE.weights * 2 / 1.0
    assert flop_rate == 2 * (SHAPE.layer_weights * 8 + SHAPE.head_weights) / 3.0


CURVE = {1: 1.0, 2: 1.5, 4: 2.0, 8: 4.0}


def test_a_target_that_pads_pays_for_the_next_compiled_width_and_runs_none_beyond():
    v = padded_cost({11: 2.0, 1: 1.0, 5: 1.5})
    assert [v(width) for width in (1, 2, 5, 6, 11, 12)] == [1.0, 1.5, 1.5, 2.0, 2.0, math.inf]
    assert best_gamma(0.6, 0, v) == 4  # 2.31 tokens for 1.5; ten draft tokens yield 2.49 for 2


def test_expected_tokens_by_hand_and_at_the_limits():
    assert expected_tokens(0.5, 2) == 1.75
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == expected_tokens(0.8, 0) == 1
    assert expected_tokens(0.9, 500) == pytest.approx(10)


@given(st.floats(0, 0.99), st.integers(0, 12))
def test_expected_tokens_is_the_mean_of_the_capped_geometric_distribution(alpha, gamma):
    distribution = [alpha ** (k - 1) * (1 - alpha) for k in range(1, gamma + 1)] + [alpha**gamma]
    assert sum(distribution) == pytest.approx(1)
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(k * p for k, p in enumerate(distribution, 1)))


@pytest.mark.parametrize("alpha, c, speed", [(0.75, 0.02, 3.16), (0.80, 0.04, 3.25), (0.82, 0.11, 2.50)])
def test_the_factor_gives_the_papers_predictions(alpha, c, speed):
    """Leviathan et al., table 2: English-German, greedy, gamma 7, small, base and large draft."""
    assert walltime_factor(alpha, 7, c) == pytest.approx(speed, abs=0.006)


def test_a_step_is_bytes_launch_width_host_and_draft_passes_by_hand():
    step = cost.StepCost(100, 2, bandwidth=10, launch=3, v={1: 1.0, 2: 1.5}, host=0.25, draft=0.5)
    assert step.forward(cached=5) == 110 / 10 + 3
    assert step.step(cached=5, tokens=2, drafts=1) == 0.5 + 14 * 1.5 + 0.25
    assert dataclasses.replace(step, slots=20).moved(5) == 140
    assert cost.StepCost().step(cached=7, tokens=4, drafts=1) == 1.0


def test_the_factor_counts_draft_and_width():
    assert walltime_factor(0.5, 1, 0.25, CURVE) == pytest.approx(1.5 / (0.25 + 1.5))


@pytest.mark.parametrize("exit_layer, c", [(6, 14 / 38), (10, 18 / 38), (15, 23 / 38), (30, 1.0)])
def test_a_draft_token_of_an_early_exit_pays_its_layers_and_the_whole_head(exit_layer, c):
    """The head of smollm2-135m is as large as 8 layers."""
    assert early_exit_cost(SMOL, exit_layer).draft == pytest.approx(c, abs=1e-3)


@pytest.mark.parametrize("exit_layer, accepted, vocabulary, speedup", [
    (6, 2.8, None, 1.54), (6, 3.4, None, 1.78), (10, 3.4, None, 1.52), (6, 2.8, 8192, 2.14),
])  # fmt: skip
def test_four_tokens_from_an_early_exit_speed_up_by_hand(exit_layer, accepted, vocabulary, speedup):
    """(m + 1) (L + H) / (4 (E + H) + L + H) with L = 30 and H = 8, and 1.33 for a draft vocabulary of 8,192."""
    step = early_exit_cost(SMOL, exit_layer, vocabulary=vocabulary).step(tokens=5, drafts=4)
    assert (accepted + 1) / step == pytest.approx(speedup, abs=0.005)


def test_only_the_later_layers_and_the_head_run_the_wide_pass_of_an_early_exit():
    """Exit 6: 6 of 38 layers' worth run one token, 32 run three, which take twice as long; two drafts cost 14 each."""
    step = early_exit_cost(SMOL, 6, {1: 1.0, 3: 2.0})
    assert step.step(tokens=3, drafts=2) == pytest.approx((2 * 14 + 6 + 32 * 2) / 38, abs=2e-3)
    assert step.step() == 1.0  # without a draft it is a plain pass


def test_a_trimmed_head_costs_an_exit_its_own_rows_and_a_draft_vocabulary_a_share_of_them():
    trimmed = dataclasses.replace(SMOL, head_rows=16384)
    assert early_exit_cost(trimmed, 30).draft == 1.0
    assert early_exit_cost(trimmed, 6, vocabulary=8192).draft == pytest.approx((6 + 4 / 3) / (30 + 8 / 3), abs=1e-3)


@pytest.mark.parametrize("alpha, row", [
    (0.5, [5, 4, 3, 2, 1]),
    (0.6, [7, 6, 4, 3, 2]),
    (0.7, [9, 8, 6, 4, 3]),
    (0.8, [14, 11, 8, 6, 4]),
    (0.9, [24, 19, 13, 10, 7]),
])  # fmt: skip
def test_the_best_draft_length_for_a_free_width(alpha, row):
    assert [best_gamma(alpha, c) for c in (0.01, 0.02, 0.05, 0.10, 0.20)] == row


def test_no_draft_is_best_where_none_pays():
    assert best_gamma(0.2, 0.3) == 0
    assert best_gamma(0.9, 0.1, lambda width: width) == 0  # a pass that costs as much as its tokens
    assert best_gamma(1.0, 0.0, most=5) == 5


@given(st.floats(0.01, 0.9))
def test_with_a_free_width_a_draft_pays_as_soon_as_alpha_exceeds_c(c):
    assert break_even(c) == pytest.approx(c, abs=1e-9)


def test_the_break_even_divides_gain_from_loss():
    alpha = break_even(0.1, CURVE)
    assert best_gamma(alpha - 1e-6, 0.1, CURVE) == 0 < best_gamma(alpha + 1e-6, 0.1, CURVE)
    assert break_even(0.1, lambda width: 2 * width) == math.inf


def test_the_width_curve_is_read_between_and_beyond_its_points():
    v = width_cost(CURVE)
    assert [v(w) for w in (1, 2, 3, 4, 6, 8, 10)] == [1.0, 1.5, 1.75, 2.0, 3.0, 4.0, 5.0]
    assert width_cost({1: 1.0})(7) == width_cost(None)(7) == 1.0
    assert width_cost(lambda w: w / 2)(3) == 1.5


def test_the_acceptance_rate_counts_checked_draft_tokens_only():
    steps = [
        StepStats(5, 5, committed=1, is_prefill=True),
        StepStats(6, 5, depth=4, accepted=4, committed=5),  # 4 of 4
        StepStats(11, 5, depth=4, accepted=1, committed=2),  # 1 of 2: the third and fourth were not looked at
        StepStats(13, 5, depth=4, accepted=2, committed=2),  # 2 of 2, the second one ended the text
        StepStats(15, 1, committed=1),  # nothing drafted
    ]
    assert acceptance_rate(steps) == 7 / 8
    assert math.isnan(acceptance_rate(steps[:1]))


def test_the_acceptance_rate_finds_alpha_where_accepted_over_proposed_does_not():
    rng, alpha, gamma, steps = random.Random(0), 0.7, 4, []
    for _ in range(20_000):
        accepted = next((i for i in range(gamma) if rng.random() >= alpha), gamma)
        steps.append(StepStats(1, gamma + 1, proposed=gamma, depth=gamma, accepted=accepted, committed=accepted + 1))
    assert acceptance_rate(steps) == pytest.approx(alpha, abs=0.01)
    assert sum(s.accepted for s in steps) / sum(s.proposed for s in steps) == pytest.approx(0.443, abs=0.01)
    assert sum(s.committed for s in steps) / len(steps) == pytest.approx(expected_tokens(alpha, gamma), abs=0.04)


RATE, BANDWIDTH = 2e11, 3e10


def request(prompt, computed=0, emitted=0):
    made = Sequence(0, 0, prompt, 100)
    made.num_computed_tokens, made.num_output_tokens = computed, emitted
    return made


def seconds(flops, moved):
    return max(flops / RATE, moved / BANDWIDTH)


@pytest.mark.parametrize("batch, cached", [(1, 0), (1, 500), (16, 1000), (64, 20)])
def test_the_analytic_model_is_the_roofline_of_a_decode_step(batch, cached):
    predicted = RooflineCost(SMOL, RATE, BANDWIDTH).seconds(Load(decode_tokens=batch, kv_tokens=batch * cached))
    flops, moved = cost.flops_decode(SMOL, batch, cached), cost.bytes_decode(SMOL, batch, cached)
    assert predicted == pytest.approx(seconds(flops, moved))


@pytest.mark.parametrize("tokens", [1, 10, 1000])
def test_the_analytic_model_is_the_roofline_of_a_prefill(tokens):
    predicted = RooflineCost(SMOL, RATE, BANDWIDTH).seconds(Load(tokens, tokens * (tokens + 1) // 2, 1))
    flops, moved = cost.flops_prefill(SMOL, tokens), cost.bytes_prefill(SMOL, tokens)
    assert predicted == pytest.approx(seconds(flops, moved))


def test_prompts_in_chunks_cost_the_same_compute():
    compute = RooflineCost(SMOL, RATE, bandwidth=1e30)  # reading takes no time
    parts = [load_of(Plan([Row(request(30, done), 10)])) for done in (0, 10, 20)]
    whole = load_of(Plan([Row(request(30), 30)]))
    assert sum(map(compute.seconds, parts)) == pytest.approx(compute.seconds(whole) + 2 * 2 * SMOL.head_weights / RATE)


def test_windowed_attention_is_refused():
    with pytest.raises(ValueError, match="windowed attention"):
        RooflineCost(CONFIGS["mistral-7b-v0.1"], RATE, BANDWIDTH)


def loads(count, seed):
    rng = random.Random(seed)
    tokens = [rng.choice((0, 16, 64, 256)) for _ in range(count)]
    return [
        Load(t, t * (t + 1) // 2, int(t > 0), b, b * rng.choice((64, 256, 1024)))
        for t, b in zip(tokens, rng.choices((0, 1, 4, 16), k=count), strict=True)
    ]


TERMS = ("step", "prefill_token", "prefill_pair", "decode_token", "kv_token")
PRICES = LinearCost(step=0.04, prefill_token=1e-3, prefill_pair=2e-7, decode_token=2e-3, kv_token=1e-6)


def test_the_fit_finds_the_prices_again():
    found = fit([(work, PRICES.seconds(work)) for work in loads(40, 0)], TERMS)
    assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(PRICES), rel=1e-6)


def test_the_fit_predicts_steps_it_has_not_seen_in_spite_of_noise():
    rng = random.Random(2)
    found = fit([(work, PRICES.seconds(work) * rng.uniform(0.9, 1.1)) for work in loads(60, 0)], TERMS)
    assert all(found.seconds(work) == pytest.approx(PRICES.seconds(work), rel=0.1) for work in loads(30, 1))


def test_no_price_is_negative_and_what_was_never_seen_is_free():
    steps = [(Load(decode_tokens=b), 1.0 - 0.01 * b) for b in range(1, 9)]  # wider is faster: noise, not a price
    found = fit(steps, TERMS)
    assert found.decode_token == found.prefill_token == 0 and 0.9 < found.step < 1


def test_the_fit_weighs_relative_errors():
    """One pass of 1 s and one of 100 s, the same count: the price is off by as much of each, not by as many s."""
    one = Load(prefill_tokens=1, prompts=1)
    found = fit([(one, 1.0), (one, 100.0)], terms=("prefill_token",))
    assert found.prefill_token == pytest.approx((1 + 0.01) / (1 + 0.0001))


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="4 steps cannot fix 5 coefficients"):
        fit([(Load(), 1.0)] * 4, TERMS)


def test_halfway_between_two_values_is_the_geometric_mean_of_the_points():
    assert crossing([4, 16, 64], [1.0, 1.5, 2.5], 2.0) == pytest.approx(32)


def test_a_dip_after_an_early_rise_counts():
    assert crossing([1, 2, 4, 8], [3.0, 1.0, 3.0, 4.0], 2.0) == pytest.approx(2 * 2**0.5)


def test_a_curve_that_is_always_above_crosses_at_its_first_point_and_one_that_ends_below_never():
    assert crossing([5, 10], [2.0, 3.0], 2.0) == 5
    assert math.isnan(crossing([1, 2, 4], [1.0, 3.0, 1.9], 2.0))


@pytest.mark.parametrize("startup, slow, fast, tokens", [
    (60, 0.04, 0.01, 2000), (61, 0.04, 0.01, 2034), (0, 0.04, 0.01, 0), (30, 0.04, 0.04, math.inf),
    (30, 0.01, 0.04, math.inf), (0, 0.04, 0.04, 0),
])  # fmt: skip
def test_break_even_is_the_first_token_at_which_the_start_is_earned_back(startup, slow, fast, tokens):
    assert break_even_tokens(startup, slow, fast) == tokens


def test_the_width_curve_divides_within_a_round_so_that_a_slow_round_changes_nothing():
    curve = {1: Samples((1.0, 1.0, 9.0)), 4: Samples((1.5, 1.6, 18.0))}
    assert cost.width_curve(curve) == {1: 1.0, 4: 1.6}
    drifting = {1: Samples((1.0, 4.0, 2.0)), 4: Samples((3.0, 4.0, 5.0))}  # the medians alone would give 4 / 2
    assert cost.width_curve(drifting) == {1: 1.0, 4: 2.5}
