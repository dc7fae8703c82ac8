"""Weight names (lesson 02): between a transformers Llama checkpoint and the readable decoder's fused matrices."""

from collections.abc import Mapping

import torch
from torch import Tensor


def head_is_embedding(network) -> bool:
    """Whether the LM head of a transformers model is its embedding. Its config may say so when it is not: a checkpoint
    can hold a head of its own, such as one that was fine-tuned."""
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if head is None:
        return False
    same_memory = head.weight.data_ptr() == embedding.weight.data_ptr() != 0  # 0: none, on the meta device
    return head.weight is embedding.weight or same_memory


def fused_weights(state: Mapping[str, Tensor], config) -> dict[str, Tensor]:
    """transformers' state dict -> ours. config: ModelConfig.

    q, k, v are stacked, ((H + 2 H_kv) d, D), and gate and up, (2 D_ff, D); all other shapes stay.
    """
    weights = {"embedding.weight": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    weights["head.weight"] = weights["embedding.weight"] if config.tie_word_embeddings else state["lm_head.weight"]
    for i in range(config.num_layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        attention, mlp = theirs + "self_attn.", theirs + "mlp."
        weights |= {
            ours + "attention_norm": state[theirs + "input_layernorm.weight"],
            ours + "mlp_norm": state[theirs + "post_attention_layernorm.weight"],
            ours + "qkv.weight": torch.cat([state[f"{attention}{x}_proj.weight"] for x in "qkv"]),
            ours + "out.weight": state[attention + "o_proj.weight"],
            ours + "gate_up.weight": torch.cat([state[f"{mlp}{x}_proj.weight"] for x in ("gate", "up")]),
            ours + "down.weight": state[mlp + "down_proj.weight"],
        }
    return weights


def their_names(weights: dict[str, Tensor], config) -> dict[str, Tensor]:
    """Our fused matrices -> transformers' names: the inverse of `fused_weights`, without the embedding and the head."""
    found, heads = {"model.norm.weight": weights["norm"]}, [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    for i in range(config.num_layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        qkv = weights[ours + "qkv.weight"].split([n * config.head_dim for n in heads])
        gate, up = weights[ours + "gate_up.weight"].chunk(2)
        found |= {theirs + f"self_attn.{x}_proj.weight": part for x, part in zip("qkv", qkv, strict=True)}
        found |= {
            theirs + "self_attn.o_proj.weight": weights[ours + "out.weight"],
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": weights[ours + "down.weight"],
            theirs + "input_layernorm.weight": weights[ours + "attention_norm"],
            theirs + "post_attention_layernorm.weight": weights[ours + "mlp_norm"],
        }
    return found
