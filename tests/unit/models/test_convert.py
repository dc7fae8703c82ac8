"""GGUF tensors under the names and in the order of transformers."""

import pytest
import torch

from lessons_lib.models.gguf import convert, hf_name, read_config, unpermute


@pytest.mark.parametrize(
    "gguf, hf",
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
        ("blk.29.ffn_norm.weight", "model.layers.29.post_attention_layernorm.weight"),
    ],
)
def test_names_are_translated(gguf, hf):
    assert hf_name(gguf) == hf


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight"])
def test_a_tensor_without_a_place_is_refused(name):
    with pytest.raises(ValueError, match="has no place in a Llama model"):
        hf_name(name)


def test_pairs_of_neighbours_become_halves_of_a_head():
    rows = torch.arange(12.0)[:, None].expand(12, 3)  # two heads of d = 6
    assert unpermute(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_another_family_is_refused():
    with pytest.raises(ValueError, match="family 'qwen2' are not converted"):
        read_config({"general.architecture": "qwen2"}, tied=True)


def test_the_folder_holds_what_transformers_reads(tiny_gguf, tmp_path):
    convert(tiny_gguf, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
