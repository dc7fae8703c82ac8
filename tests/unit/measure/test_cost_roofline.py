"""Work and traffic: formulas against worked numbers, published figures, and FLOPs counted in a real forward."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.measure import cost
from lessons_lib.measure.config import CONFIGS, ModelConfig
from lessons_lib.measure.machine import DATA_SHEETS

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


@pytest.mark.parametrize("rows", [1, 7])
def test_counted_flops_of_a_prefill_equal_the_formula_with_dense_attention(tiny, rows):
    model, shape = tiny
    matrices = cost.flops_prefill(shape, 7, rows) - 4 * shape.num_heads * shape.head_dim * shape.attended(7)
    dense = dense_attention(shape, 7)
    assert counted(model, 7, logits_to_keep=rows) == matrices + dense
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


def test_the_embedding_of_an_untied_model_is_not_read_by_a_decode_step():
    untied = dataclasses.replace(SMOL, tie_word_embeddings=False)
    assert cost.bytes_decode(untied) == cost.bytes_decode(SMOL)
    assert untied.params() == SMOL.params() + SMOL.head_weights


@pytest.mark.parametrize("name, expected", [("opt-1.3b", 1), ("smollm2-135m", 3), ("gemma-2b", 8)])
def test_intensity_of_attention_is_the_grouping_whatever_batch_and_length(name, expected):
    shape = CONFIGS[name]
    for batch, cached in ((1, 10), (8, 1000)):
        flops = cost.flops_decode(shape, batch, cached) - cost.flops_decode(shape, batch)
        moved = cost.bytes_decode(shape, batch, cached) - cost.bytes_decode(shape, batch)
        assert flops / moved == pytest.approx(expected)


@pytest.mark.parametrize("weight_bytes, times_batch", [(2, 1), (1, 2), (0.625, 3.2)])
def test_intensity_of_the_weights_grows_with_the_batch(weight_bytes, times_batch):
    for batch in (1, 16):
        flops, moved = cost.flops_decode(SMOL, batch), cost.bytes_decode(SMOL, batch, 0, weight_bytes)
        assert flops / moved == pytest.approx(times_batch * batch)


def test_from_the_critical_batch_on_the_matrices_are_compute_bound():
    flop_rate, bandwidth = 200e9, 20e9
    batch = cost.critical_batch(cost.ridge(flop_rate, bandwidth))
    assert batch == 10
    work = cost.flops_decode(SMOL, int(batch)), cost.bytes_decode(SMOL, int(batch))
    assert work[0] / flop_rate == pytest.approx(work[1] / bandwidth)


def test_a_bracket_lies_between_the_larger_and_the_sum():
    found = cost.bracket(flops=6, moved=20, flop_rate=2, bandwidth=10)
    assert (found.low, found.high, found.middle) == (3, 5, 4)
    assert cost.overhead(7, found) == 4


def test_bandwidth_utilisation_of_the_published_run_is_72_percent():
    step = 6.74e9 * 2
    assert cost.mbu(step, 107, 2e12) == pytest.approx(0.721, abs=5e-4)
    assert cost.mbu(7e9 * 2, 107, 2e12) == pytest.approx(0.749, abs=5e-4)  # the wrong count


def test_published_bytes_per_token_are_the_weights_plus_a_little():
    base, int8, int4 = 1397.31 / 104.9, 1069.20 / 155.58, 862.69 / 196.80  # GB/s over tokens/s
    assert (round(base, 2), round(int8, 2), round(int4, 2)) == (13.32, 6.87, 4.38)
    weights = cost.bytes_decode(CONFIGS["llama-2-7b"]) / 1e9
    assert weights < base < weights * 1.01
    assert int8 / base == pytest.approx(0.516, abs=5e-4) and int4 / base == pytest.approx(0.329, abs=5e-4)


def test_flops_utilisation_is_work_per_second_over_the_peak():
    assert cost.mfu(2e9, 50, 1e12) == pytest.approx(0.1)


@pytest.mark.parametrize("name, ridge", [("A100-40GB", 201), ("A100-80GB", 153), ("H100-SXM", 295), ("H200", 206)])
def test_ridge_points_of_the_data_sheets(name, ridge):
    assert round(DATA_SHEETS[name].ridge) == ridge


def test_predictions_take_the_rates_of_their_dtype():
    rates = SimpleNamespace(matvec_bandwidth={"bf16": 10e9, "fp32": 20e9}, matmul_flops={"bf16": 100e9, "fp32": 50e9})
    step = cost.predict_decode_step(SMOL, rates, "fp32", batch=2, cached=100)
    moved = SMOL.weights * 4 + 2 * 100 * 23_040 * 2
    assert step.low == pytest.approx(moved / 20e9)
    assert step.high == pytest.approx(moved / 20e9 + cost.flops_decode(SMOL, 2, 100) / 50e9)
    prefill = cost.predict_prefill(SMOL, rates, "bf16", tokens=512)
    assert prefill.low == pytest.approx(cost.flops_prefill(SMOL, 512) / 100e9)


def test_predictions_take_rates_given_instead():
    rates = SimpleNamespace(matvec_bandwidth={"bf16": 10e9}, matmul_flops={"bf16": 100e9})
    assert cost.predict_decode_step(SMOL, rates, bandwidth=1e9).low == pytest.approx(0.268959744)
    one, two = (cost.predict_decode_step(SMOL, rates, batch=batch, cached=1000) for batch in (1, 2))
    assert one == cost.predict_decode_step(SMOL, rates, cached=1000) != two
    slow = cost.predict_prefill(SMOL, rates, tokens=64, flop_rate=1e9)
    assert slow.low == pytest.approx(cost.flops_prefill(SMOL, 64) / 1e9)


def test_the_limit_is_bytes_or_flops_at_the_best_rates_seen():
    rates = SimpleNamespace(read_bandwidth=10.0, matvec_bandwidth={"bf16": 1.0}, matmul_flops={"bf16": 40.0})
    assert cost.limit(10, 20, rates, "bf16") == 2  # memory; the slower one-row products do not count
    assert cost.limit(400, 20, rates, "bf16") == 10  # arithmetic, at the square product's rate
    assert cost.limit(400, 20, rates, "bf16", flop_rate=80) == 5  # at a faster product's
    assert cost.limit(400, 20, rates, "bf16", flop_rate=8) == 10  # a slower one does not count
    assert cost.limit(400, 20, rates, "int4") == 2  # nothing known but its bytes
    assert cost.limit(10, 20, rates, "bf16", bandwidth=20) == 1  # another product read faster
    assert cost.limit(10, 20, rates, "bf16", bandwidth=5) == 2
    rates.matvec_bandwidth["fp32"] = 40.0  # so did one of the probe's, in whatever format: bytes are bytes
    assert cost.limit(10, 20, rates, "bf16") == 0.5


def test_a_dtype_that_was_not_measured_is_refused():
    with pytest.raises(ValueError, match="No rates for fp16"):
        cost.predict_decode_step(SMOL, SimpleNamespace(matvec_bandwidth={}, matmul_flops={}), "fp16")


def test_quantized_weights_keep_a_16_bit_cache():
    assert [cost.cache_element_bytes(d) for d in ("fp32", "bf16", "int8", "int4")] == [4, 2, 2, 2]
    assert cost.tokens_per_second_limit(26.9e9, SMOL) == pytest.approx(100, abs=0.1)
