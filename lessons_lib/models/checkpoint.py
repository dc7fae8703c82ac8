"""Weight names: from a transformers Llama checkpoint to the readable decoder's fused matrices."""

from collections.abc import Mapping

import torch
from torch import Tensor


def fused_weights(state: Mapping[str, Tensor], config) -> dict[str, Tensor]:
    """transformers' state dict -> ours: q, k, v stacked in one matrix, gate and up in another."""
    weights = {"embedding.weight": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    weights["head.weight"] = weights["embedding.weight"] if config.tied else state["lm_head.weight"]
    for i in range(config.layers):
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
