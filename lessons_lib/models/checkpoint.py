"""Weight names (lesson 02): from a transformers Llama checkpoint to the readable decoder's fused matrices and back."""

import torch
from torch import Tensor


def head_is_embedding(network) -> bool:
    """Whether the LM head of a transformers model shares the embedding's weights.

    The config is not reliable: a checkpoint can hold a separate head, for example a fine-tuned one.
    """
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if head is None:
        return False
    same_memory = head.weight.data_ptr() == embedding.weight.data_ptr() != 0  # 0: none, on the meta device
    return head.weight is embedding.weight or same_memory


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate parameters (N_i, K) to one matrix (sum of N_i, K) and make them views of it.

    So nothing is stored twice. If they are adjacent in memory already, as after an earlier call, that memory is used as
    it is.
    """
    # 1. are the parts adjacent in memory already?
    first, rows = parts[0], [len(part) for part in parts]
    starts = [first.storage_offset() + sum(rows[:i]) * first.shape[1] for i in range(len(parts))]
    memory = {part.untyped_storage().data_ptr() for part in parts}
    in_place = len(memory) == 1 and all(part.is_contiguous() for part in parts)
    if in_place and [part.storage_offset() for part in parts] == starts:
        return first.detach().as_strided((sum(rows), first.shape[1]), (first.shape[1], 1), starts[0])
    # 2. if not, copy them into one matrix and make them views of it
    whole = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, whole.split(rows), strict=True):
        part.data = view
    return whole


def fused_weights(network, config) -> dict[str, Tensor]:
    """The weights of a transformers Llama under our names, in the same memory. config: ModelConfig.

    q, k, v are fused to ((H + 2 H_kv) d, D), gate and up to (2 D_ff, D); all other shapes stay.
    """
    state = dict(network.named_parameters(remove_duplicate=False))
    weights = {"embedding.weight": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    weights["head.weight"] = weights["embedding.weight"] if config.tie_word_embeddings else state["lm_head.weight"]
    # each layer: norms and output matrices keep their shapes, q, k, v and gate, up are fused
    for i in range(config.num_layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        attention, mlp = theirs + "self_attn.", theirs + "mlp."
        weights |= {
            ours + "attention_norm": state[theirs + "input_layernorm.weight"],
            ours + "mlp_norm": state[theirs + "post_attention_layernorm.weight"],
            ours + "qkv.weight": joined([state[f"{attention}{x}_proj.weight"] for x in "qkv"]),
            ours + "out.weight": state[attention + "o_proj.weight"],
            ours + "gate_up.weight": joined([state[f"{mlp}{x}_proj.weight"] for x in ("gate", "up")]),
            ours + "down.weight": state[mlp + "down_proj.weight"],
        }
    return weights


def their_names(weights: dict[str, Tensor], config) -> dict[str, Tensor]:
    """Our fused matrices under transformers' names: the inverse of `fused_weights`, without embedding and head."""
    found, heads = {"model.norm.weight": weights["norm"]}, [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    for i in range(config.num_layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        # split the fused matrices, then rename the others
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
