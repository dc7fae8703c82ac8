"""Random two-layer models (lessons 03, 06) for tests and toy examples, built by transformers in milliseconds.

In float64 by default, where rounding does not flip an argmax.
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

FAMILIES = ("llama", "mistral", "gemma", "gpt_neox", "opt")


def tiny(
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    family: str = "llama",
    *,
    width: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    vocab_size: int = 97,
    context: int = 256,
    tied: bool = False,
    window: int | None = None,
) -> PreTrainedModel:
    """A random causal LM of transformers on the CPU, without tokenizer and without end-of-sequence token.

    The same arguments give the same weights; the global random state is not changed. family: one of FAMILIES. kv_heads:
    for llama, mistral and gemma (in other families every query head has its own). window: a sliding window, mistral
    only.
    """
    if family not in FAMILIES:
        raise ValueError(f"family={family!r} is not known; choose one of: {', '.join(FAMILIES)}.")
    if window is not None and family != "mistral":
        raise ValueError(f"family={family!r} has no sliding window; use family='mistral'.")
    sizes = {
        "vocab_size": vocab_size, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "max_position_embeddings": context, "tie_word_embeddings": tied,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    opt = {"ffn_dim": 2 * width, "word_embed_proj_dim": width, "dropout": 0.0}
    sizes |= opt if family == "opt" else {"intermediate_size": 2 * width}
    if family in ("llama", "mistral", "gemma"):
        sizes |= {"num_key_value_heads": kv_heads, "head_dim": width // heads}
    if family == "mistral":
        sizes |= {"sliding_window": window}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes), dtype=dtype)
        _randomize(network)
    return network.eval()


@torch.no_grad()
def _randomize(network: PreTrainedModel) -> None:
    """Larger weights than usual, also in norms and biases: logits are sharp, and a missing term shows in the output."""
    for module in network.modules():
        for weight in module.parameters(recurse=False):
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif isinstance(module, nn.Embedding) and not network.config.tie_word_embeddings:
                weight.normal_()
            else:
                weight.normal_(0, 2 * weight.shape[-1] ** -0.5)
