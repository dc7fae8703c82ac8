"""transformers' attention implementations (lesson 00): switch `attn_implementation` temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


@contextmanager
def attending(network: PreTrainedModel, name: str) -> Iterator[PreTrainedModel]:
    """Context manager: the network with this attn_implementation ("eager", "sdpa", ...).

    FlashAttention needs a network in 16 bits.
    """
    before = network.config._attn_implementation
    network.set_attn_implementation(name)
    try:
        yield network
    finally:
        network.set_attn_implementation(before)
