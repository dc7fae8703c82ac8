"""The widgets' numbers: sums over the predictions of single steps, and bytes by hand."""

import pytest

from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.hardware import Hardware
from lessons_lib.measure.roofline import predict_decode_step, predict_prefill
from lessons_lib.widgets import kv_cache, latency

SMOL = CONFIGS["smollm2-135m"]
MACHINE = Hardware("cpu", "test", 2, 33e9, 32e9, {"bf16": 20e9}, {"bf16": 200e9}, 0.0)
GIB = 2**30


def test_latency_is_the_prefill_and_one_step_for_every_further_token():
    steps = [predict_decode_step(SMOL, MACHINE, "bf16", cached=s) for s in (101, 102)]
    found = latency.predict_latency(SMOL, MACHINE, "bf16", prompt=100, output=3)
    assert found.ttft == predict_prefill(SMOL, MACHINE, "bf16", 100)
    assert found.decode.low == pytest.approx(sum(step.low for step in steps))
    assert found.total.high == pytest.approx(found.ttft.high + sum(step.high for step in steps))


def test_one_token_needs_no_decode_step_and_the_figure_still_says_so():
    found = latency.predict_latency(SMOL, MACHINE, "bf16", prompt=100, output=1)
    assert found.decode.low == found.decode.high == 0
    assert "only token" in latency.describe_latency(SMOL, MACHINE, "bf16", 100, 1)


def test_the_latency_figure_has_both_ends_of_the_prediction():
    found = latency.predict_latency(SMOL, MACHINE, "bf16", 512, 128)
    ax = latency.draw_latency(SMOL, MACHINE, "bf16", 512, 128)
    widths = [bar.get_width() for bar in ax.patches if bar.get_width()]
    ends = [found.ttft.low, found.decode.low, found.ttft.high, found.decode.high]
    assert widths == pytest.approx(ends)
    assert "512 tokens in, 128 out" in latency.describe_latency(SMOL, MACHINE, "bf16", 512, 128)


def test_llama_2_with_its_whole_context_needs_two_gib_a_request():
    need = kv_cache.fit(CONFIGS["llama-2-7b"], "bf16", batch=4, context=4096, memory=24 * GIB)
    assert need.cache == 4 * 2 * GIB
    assert need.weights == pytest.approx(6_738_415_616 * 2, rel=1e-3)  # published count; norms are ignored
    assert need.requests == 5 and need.fits
    assert not kv_cache.fit(CONFIGS["llama-2-7b"], "bf16", 6, 4096, 24 * GIB).fits


def test_quantized_weights_keep_a_cache_of_16_bits_and_fp32_weights_double_it():
    cache = {dtype: kv_cache.fit(SMOL, dtype, 1, 1000, GIB).cache for dtype in kv_cache.DTYPES}
    assert cache == {"fp32": 46_080_000, "bf16": 23_040_000, "int8": 23_040_000, "int4": 23_040_000}


def test_a_context_beyond_the_models_own_is_cut_to_it_and_says_so():
    text = kv_cache.describe_kv_cache("pythia-1.4b", "bf16", 1, 32768, 16)
    assert "1 requests of 2,048 tokens, the model's most and less than 32,768," in text and "cache 0.375 GiB" in text
    ax = kv_cache.draw_kv_cache("pythia-1.4b", "bf16", 1, 32768, 16)
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) < 16 < ax.get_xlim()[1]
    assert ax.get_yticklabels()[0].get_text() == "1 × 2,048\ntokens\n(the model's most)"


def test_the_widgets_show_one_figure_in_a_batch_run(shown):
    latency.show_latency(SMOL, MACHINE, "bf16")
    kv_cache.show_kv_cache()
    assert len(shown) == 2 and "512 tokens in, 128 out" in shown[0] and "8 requests of 2,048 tokens" in shown[1]
