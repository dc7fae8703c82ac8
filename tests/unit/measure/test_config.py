"""Model shapes: weights counted from sizes, and read from transformers configs."""

from types import SimpleNamespace

import pytest
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)

from lessons_lib.measure.config import CONFIGS, ModelConfig

TINY = dict(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    vocab_size=50,
    max_position_embeddings=64,
)


def matrices(model) -> int:
    """Elements of every matrix that a token is multiplied with: linear layers, the head among them."""
    return sum(m.weight.numel() for m in model.modules() if type(m).__name__ == "Linear")


def test_smollm2_has_the_weights_of_the_reference_table():
    shape = CONFIGS["smollm2-135m"]
    assert (shape.layer_weights, shape.head_weights) == (106_168_320, 28_311_552)
    assert shape.weights == 134_479_872


@pytest.mark.parametrize(
    "name, params",
    [
        ("smollm2-135m", 134_515_008),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("gemma-2b", 2_506_172_416),
    ],
)
def test_weights_norms_and_an_embedding_table_of_its_own_are_the_published_parameters(name, params):
    shape = CONFIGS[name]
    table = 0 if shape.tie_word_embeddings else shape.head_weights
    assert shape.weights + table + (2 * shape.num_layers + 1) * shape.hidden_size == params


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LlamaConfig(**TINY, intermediate_size=48, num_key_value_heads=2), id="llama-gqa"),
        pytest.param(LlamaConfig(**TINY, intermediate_size=48, tie_word_embeddings=True, head_dim=16), id="wide-heads"),
        pytest.param(Qwen3Config(**TINY, intermediate_size=48, num_key_value_heads=1, head_dim=16), id="qwen3"),
        pytest.param(OPTConfig(**TINY, ffn_dim=48, word_embed_proj_dim=32), id="opt"),
        pytest.param(GPTNeoXConfig(**TINY, intermediate_size=48), id="pythia"),
    ],
)
def test_weights_equal_the_matrices_of_the_model_that_the_config_builds(config):
    model = AutoModelForCausalLM.from_config(config)
    assert ModelConfig.from_transformers(config).weights == matrices(model)


def test_head_dim_of_the_config_wins_over_width_by_heads():
    shape = ModelConfig.from_transformers(LlamaConfig(**TINY, head_dim=16))
    assert (shape.head_dim, shape.num_heads * shape.head_dim, shape.hidden_size) == (16, 64, 32)


@pytest.mark.parametrize("config, kv_heads", [
    (FalconConfig(), 1), (FalconConfig(multi_query=False), 71), (GPTBigCodeConfig(), 1),
    (FalconConfig(new_decoder_architecture=True, num_attention_heads=64, num_kv_heads=8, hidden_size=4096), 8),
])  # fmt: skip
def test_families_with_names_of_their_own_for_kv_heads_are_read(config, kv_heads):
    assert ModelConfig.from_transformers(config).num_kv_heads == kv_heads


def test_windows_are_read_per_layer_and_ignored_where_switched_off():
    mistral = ModelConfig.from_transformers(MistralConfig(**TINY, sliding_window=8))
    hybrid = ModelConfig.from_transformers(Gemma2Config(**TINY, sliding_window=8))
    without = ModelConfig.from_transformers(Qwen2Config(**TINY, sliding_window=8, use_sliding_window=False))
    assert (mistral.kept(20), hybrid.kept(20), without.kept(20)) == (2 * 8, 8 + 20, 2 * 20)


def test_attended_pairs_equal_a_count_over_the_mask():
    shape = ModelConfig("x", 3, 8, 2, 1, 4, 16, 10, 64, sliding_window=4, windowed_layers=2)
    for tokens in (1, 3, 4, 5, 11):
        full = sum(t + 1 for t in range(tokens))
        local = sum(min(t + 1, 4) for t in range(tokens))
        assert shape.attended(tokens) == full + 2 * local


def test_a_config_without_sizes_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="no num_attention_heads"):
        ModelConfig.from_transformers(SimpleNamespace(model_type="mamba"))


def test_the_short_names_of_older_configs_are_read_and_a_model_without_a_name_gets_one():
    old = SimpleNamespace(n_head=4, n_embd=32, n_layer=3, n_inner=64, vocab_size=96, n_positions=128)
    shape = ModelConfig.from_transformers(old)
    assert (shape.name, shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads) == (
        "model",
        3,
        32,
        4,
        4,
    )
    assert (
        shape.intermediate_size,
        shape.max_position_embeddings,
        ModelConfig.from_transformers(old, "mine").name,
    ) == (64, 128, "mine")
