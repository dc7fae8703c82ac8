"""`lessons_lib.models.tiny` in several families, and with a sliding window."""

import torch
from transformers import AutoConfig, PreTrainedModel

from lessons_lib.models.tiny_models import random_network

FAMILIES = ("llama", "mistral", "gemma", "gpt_neox", "opt")


def tiny_of(
    family: str,
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    *,
    kv_heads: int = 2,
    vocab_size: int = 97,
    context: int = 256,
    tied: bool = False,
    window: int | None = None,
) -> PreTrainedModel:
    """A random model of one of FAMILIES. kv_heads: not for gpt_neox and opt. window: a sliding one, mistral only."""
    sizes = dict(
        vocab_size=vocab_size, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4,
        max_position_embeddings=context, tie_word_embeddings=tied,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    sizes |= dict(ffn_dim=64, word_embed_proj_dim=32, dropout=0.0) if family == "opt" else dict(intermediate_size=64)
    if family in ("llama", "mistral", "gemma"):
        sizes |= dict(num_key_value_heads=kv_heads, head_dim=8)
    if family == "mistral":
        sizes |= dict(sliding_window=window)
    return random_network(AutoConfig.for_model(family, **sizes), dtype, seed)
