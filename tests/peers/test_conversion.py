"""Our conversion of a GGUF file against transformers' own, on two random layers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from lessons_lib.models.gguf import convert

CONFIG = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "vocab_size", "max_position_embeddings", "rope_parameters", "tie_word_embeddings",
          "bos_token_id", "eos_token_id", "pad_token_id")  # fmt: skip


@pytest.fixture(scope="module")
def networks(tiny_gguf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    convert(tiny_gguf, folder)
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(
        tiny_gguf.parent, gguf_file=tiny_gguf.name, dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )  # fmt: skip
    return ours, theirs


def test_every_tensor_is_equal(networks):
    ours, theirs = (network.state_dict() for network in networks)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_the_configs_agree(networks):
    ours, theirs = ({key: getattr(network.config, key) for key in CONFIG} for network in networks)
    assert ours == theirs
    assert networks[0].config.rms_norm_eps == pytest.approx(networks[1].config.rms_norm_eps, rel=1e-6)


@torch.no_grad()
def test_the_logits_agree(networks):
    ids = torch.arange(40)[None]
    ours, theirs = (network(ids).logits for network in networks)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
