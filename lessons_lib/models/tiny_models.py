"""Random two-layer models (lessons 03, 06) for tests and toy examples, built by transformers in milliseconds.

In float64 by default, where rounding does not flip an argmax.
"""

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel


def tiny(
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    *,
    width: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    vocab_size: int = 97,
    context: int = 256,
    tied: bool = False,
) -> PreTrainedModel:
    """A random Llama of transformers on the CPU, without tokenizer and without end-of-sequence token."""
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width // heads,
        max_position_embeddings=context, tie_word_embeddings=tied,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return random_network(config, dtype, seed)


def random_network(config: PreTrainedConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """A random causal LM of this config: same arguments, same weights. The global random state is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(config, dtype=dtype)
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
