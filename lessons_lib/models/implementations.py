"""transformers' attention implementations (lesson 04): switch `attn_implementation` temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel


@contextmanager
def attending(network: PreTrainedModel, name: str) -> Iterator[PreTrainedModel]:
    """Context manager: the network with this attn_implementation ("eager", "sdpa", "flash_attention_2", ...).

    FlashAttention supports only 16-bit dtypes, so with it a float32 network runs under bfloat16 autocast. transformers
    raises ImportError for a missing package and ValueError for unknown names.
    """
    before = network.config._attn_implementation
    network.set_attn_implementation(name)
    narrow = name.startswith("flash_attention") and network.dtype == torch.float32
    try:
        with torch.autocast(network.device.type, torch.bfloat16, enabled=narrow):
            yield network
    finally:
        network.set_attn_implementation(before)
