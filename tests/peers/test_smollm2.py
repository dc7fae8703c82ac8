"""The default model against independent readings: the GGUF file dequantized by hand, and llama.cpp."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from lessons_lib.models.gguf import gguf_file
from lessons_lib.models.hub import PACKAGED

FIXTURE = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_fixture.json").read_text())
OURS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def by_hand(raw: np.ndarray, kind: str) -> np.ndarray:
    """Rows of stored bytes -> rows of float32, straight from the format's definition."""
    if kind == "F32":
        return raw
    size = {"Q4_1": 20, "Q8_0": 34}[kind]  # bytes of a block of 32 values
    blocks = raw.reshape(*raw.shape[:-1], -1, size)
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":  # fp16 scale, then 32 signed bytes
        return (scale * blocks[..., 2:].view(np.int8)).reshape(*raw.shape[:-1], -1)
    lowest = blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], -1)
    return (scale * nibbles + lowest).reshape(*raw.shape[:-1], -1)


def halves_from_pairs(heads: int) -> list[int]:
    """For each of our query or key rows, the file's: even rows of a head (d = 64) first, then odd ones."""
    return [64 * h + i for h in range(heads) for i in (*range(0, 64, 2), *range(1, 64, 2))]


def test_every_weight_is_the_files_dequantized_by_hand(smollm2):
    weights, wrong, seen = smollm2.network.state_dict(), [], {"lm_head.weight"}
    for tensor in GGUFReader(gguf_file(PACKAGED["smollm2-135m"])).tensors:
        values = by_hand(np.asarray(tensor.data), tensor.tensor_type.name)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            heads = {"attn_q": 9, "attn_k": 3}.get(parts[2])
            values = values if heads is None else values[halves_from_pairs(heads)]
            name = f"model.layers.{parts[1]}.{OURS[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        seen.add(name)
        if not np.array_equal(weights[name].numpy(), values):
            wrong.append(name)
    assert wrong == [] and seen == set(weights)


@torch.no_grad()
def test_its_likelihood_of_a_text_is_llama_cpps(smollm2):
    ids = torch.tensor([FIXTURE["scored"]["ids"]])
    loss = smollm2.network(ids, labels=ids).loss.item()
    assert loss == pytest.approx(FIXTURE["scored"]["mean_nll"], abs=0.02)


def test_its_shape_is_the_published_one(smollm2):
    shape = smollm2.shape
    assert (shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads) == (30, 576, 9, 3)
    assert (shape.vocab_size, shape.max_position_embeddings, shape.tie_word_embeddings) == (49_152, 8192, True)
    assert smollm2.network.num_parameters() == 134_515_008


def test_padding_on_the_left_leaves_a_shorter_prompts_text_alone(smollm2):
    tokenizer, network = smollm2.tokenizer, smollm2.network
    prompts = ["The capital of France is", "One, two, three, four, five, six, seven, eight, nine, ten, eleven,"]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    together = network.generate(**batch, max_new_tokens=6, do_sample=False)[:, batch.input_ids.shape[1] :]
    for prompt, row in zip(prompts, together, strict=True):
        one = tokenizer(prompt, return_tensors="pt")
        alone = network.generate(**one, max_new_tokens=6, do_sample=False)[0, one.input_ids.shape[1] :]
        assert alone.tolist() == row.tolist()
