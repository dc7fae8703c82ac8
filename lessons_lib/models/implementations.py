"""transformers' attention implementations (lesson 04): switch `attn_implementation` temporarily, keep the errors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lessons_lib.attention.backends import Outcome, first_sentence


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


@torch.no_grad()
def implementations(network: PreTrainedModel, names: Sequence[str], run: Callable[[], Tensor]) -> list[Outcome]:
    """Call run() with each attn_implementation: its output, or the first sentence of the error."""
    return [_attempt(network, name, run) for name in names]


def _attempt(network: PreTrainedModel, name: str, run: Callable[[], Tensor]) -> Outcome:
    try:
        with attending(network, name):
            return Outcome(name, run())
    except (ImportError, ValueError, RuntimeError) as error:
        return Outcome(name, None, first_sentence(str(error)))
