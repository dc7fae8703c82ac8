"""A Llama-family GGUF file turned into a transformers folder (every lesson): safetensors, config, tokenizer.

Every value is the file's own, dequantized to float32. Sources: the GGUF specification (names and layout of
tensors), llama.cpp convert_hf_to_gguf.py (the order of query and key rows, undone here).
"""

import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig

from lessons_lib import progress
from lessons_lib.models.gguf_tokenizer import build_tokenizer

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> None:
    """Writes what transformers' from_pretrained reads from folder: weights in float32, tokenizer, configs.

    ValueError for a file of another family, with another kind of tokenizer, or with tensors unknown to Llama's.
    """
    progress.say(f"Converting {gguf.name} (once, a few seconds)")
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokenizer = build_tokenizer(fields)
    config = read_config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    ids = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(folder)
    save_file(read_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


def read_config(fields: dict, tied: bool) -> LlamaConfig:
    """GGUF metadata -> LlamaConfig; tied: the file has no output matrix, the embedding serves.

    ValueError for another family than Llama's.
    """
    if (family := fields["general.architecture"]) != "llama":
        raise ValueError(f"GGUF files of the family {family!r} are not converted here, only 'llama'.")
    of = {key.removeprefix("llama."): value for key, value in fields.items() if key.startswith("llama.")}
    heads = of["attention.head_count"]
    ids = {name: fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")}
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=of["embedding_length"],
        intermediate_size=of["feed_forward_length"],
        num_hidden_layers=of["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=of.get("attention.head_count_kv", heads),
        head_dim=of.get("rope.dimension_count", of["embedding_length"] // heads),
        max_position_embeddings=of["context_length"],
        tie_word_embeddings=tied,
        rms_norm_eps=float(f"{of['attention.layer_norm_rms_epsilon']:.6g}"),  # float32 in the file
        rope_parameters={"rope_type": "default", "rope_theta": of["rope.freq_base"]},
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["padding"],
    )
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.float32
    return config


def read_weights(reader: GGUFReader, config: LlamaConfig) -> dict[str, Tensor]:
    """All tensors of the file, dequantized to float32 (out, in), under transformers' names. ValueError as `hf_name`."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in progress.bar(reader.tensors, desc="Dequantizing", unit="tensor"):
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        part = tensor.name.split(".")[-2]
        weights[hf_name(tensor.name)] = unpermute(values, heads[part]) if part in heads else values
    return weights


def hf_name(name: str) -> str:
    """A tensor's name in transformers: blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight.

    ValueError for one that has no place in a Llama model.
    """
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer and layer[2] in LAYER:
        return f"model.layers.{layer[1]}.{LAYER[layer[2]]}.weight"
    if name.removesuffix(".weight") in TOP:
        return TOP[name.removesuffix(".weight")] + ".weight"
    raise ValueError(f"The GGUF tensor {name!r} has no place in a Llama model.")


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Query or key rows (heads * d, in) from llama.cpp's order to transformers'.

    llama.cpp rotates neighbours (0, 1), (2, 3) of a head; transformers rotates i with i + d/2.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[-1])  # (heads, d/2, 2, in)
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()
