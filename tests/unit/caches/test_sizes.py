"""KV-cache arithmetic: the table of models, windows, capacity, and bytes really allocated."""

import dataclasses

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, StaticCache

from lessons_lib.caches import sizes
from lessons_lib.measure.config import CONFIGS, ModelConfig

SMOL = CONFIGS["smollm2-135m"]
MiB, GiB = 2**20, 2**30
TINY = dict(
    num_hidden_layers=2, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=64, vocab_size=50, max_position_embeddings=64,
)  # fmt: skip


@pytest.mark.parametrize(
    "name, course, true, factor, mib, own",
    [
        ("pythia-1.4b", 196_608, 196_608, 1, 384, 0.375),
        ("opt-1.3b", 196_608, 196_608, 1, 384, 0.375),
        ("gemma-2b", 147_456, 18_432, 8, 36, 0.140625),
        ("llama-2-7b", 524_288, 524_288, 1, 1024, 2),
        ("mistral-7b-v0.1", 524_288, 131_072, 4, 256, 0.5),
        ("llama-3-8b", 524_288, 131_072, 4, 256, 1),
        ("smollm2-135m", 69_120, 23_040, 3, 45, 0.17578125),
        ("opt-13b", 819_200, 819_200, 1, 1600, 1.5625),
    ],
)
def test_bytes_equal_the_table_of_models(name, course, true, factor, mib, own):
    shape = CONFIGS[name]
    assert 2 * 2 * shape.num_layers * shape.hidden_size == course == factor * true
    assert sizes.kv_bytes(shape, 1) == true
    assert sizes.kv_bytes(shape, 2048) == mib * MiB
    assert sizes.kv_bytes(shape, shape.max_position_embeddings) == own * GiB


def test_without_its_window_mistral_would_need_4_gib():
    open_ended = dataclasses.replace(CONFIGS["mistral-7b-v0.1"], sliding_window=None)
    assert sizes.kv_bytes(open_ended, 32_768) == 4 * GiB


@pytest.mark.parametrize("tokens", [3, 8, 9, 20])
def test_only_windowed_layers_stop_growing(tokens):
    hybrid = dataclasses.replace(SMOL, sliding_window=8, windowed_layers=20)
    assert sizes.kv_bytes(hybrid, tokens) == 768 * (10 * tokens + 20 * min(tokens, 8))  # 2·3·64·2 bytes a layer


@pytest.mark.parametrize("dtype, size", [(torch.float32, 4), (torch.bfloat16, 2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_bytes_allocated_by_a_real_cache_equal_the_formula(dtype, size, batch, kv_heads):
    config = LlamaConfig(**TINY | {"num_key_value_heads": kv_heads})
    model = LlamaForCausalLM(config).to(dtype)
    with torch.no_grad():
        cache = model(torch.zeros(batch, 7, dtype=torch.long)).past_key_values
    assert allocated(cache) == sizes.kv_bytes(ModelConfig.from_transformers(config), 7, batch, size)


def test_a_static_cache_takes_its_capacity_from_the_first_token_on():
    config = LlamaConfig(**TINY)
    model, cache = LlamaForCausalLM(config), StaticCache(config=config, max_cache_len=32)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), past_key_values=cache)
    assert allocated(cache) == sizes.kv_bytes(ModelConfig.from_transformers(config), 32, cache_bytes=4)


@pytest.mark.parametrize("tokens", [5, 8, 13])
def test_a_sliding_static_cache_takes_no_more_than_its_window(tokens):
    config = MistralConfig(**TINY, sliding_window=8)
    model, cache = MistralForCausalLM(config), StaticCache(config=config, max_cache_len=tokens)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), past_key_values=cache)
    assert allocated(cache) == sizes.kv_bytes(ModelConfig.from_transformers(config), tokens, cache_bytes=4)


def test_generating_leaves_as_many_cached_tokens_as_predicted():
    model = LlamaForCausalLM(LlamaConfig(**TINY, pad_token_id=0))
    cache = DynamicCache(config=model.config)
    length = dict(max_new_tokens=4, min_new_tokens=4)
    model.generate(torch.ones(1, 5, dtype=torch.long), past_key_values=cache, do_sample=False, **length)
    assert cache.get_seq_length() == sizes.cached_tokens(5, 4)


def test_a_13b_model_on_40_gb_leaves_room_for_8_requests_of_2048_tokens():
    opt = CONFIGS["opt-13b"]
    assert sizes.requests_that_fit(40e9, 26e9, opt, 512) == 33
    assert sizes.requests_that_fit(40e9, 26e9, opt, 2048) == 8
    assert sizes.requests_that_fit(40e9, 26e9, opt, 2048, cache_bytes=1) == 16
    assert sizes.requests_that_fit(20e9, 26e9, opt, 512) == 0


def allocated(cache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
