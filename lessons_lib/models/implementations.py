"""transformers' choices of attention (lesson 04): `attn_implementation`, switched for a while, refusals kept."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lessons_lib.attention.backends import Outcome, first_sentence


@contextmanager
def attending(network: PreTrainedModel, name: str) -> Iterator[PreTrainedModel]:
    """The network with this attn_implementation ("eager", "sdpa", "flash_attention_2", ...), and afterwards as before.

    FlashAttention's packages take 16 bits only, so under them a float32 network runs in bfloat16's autocast. What
    transformers raises passes through: ImportError for a package that is missing, ValueError for other names.
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
    """run() with each attn_implementation of the network: its output, or the first sentence of the refusal."""
    return [_attempt(network, name, run) for name in names]


def _attempt(network: PreTrainedModel, name: str, run: Callable[[], Tensor]) -> Outcome:
    try:
        with attending(network, name):
            return Outcome(name, run())
    except (ImportError, ValueError, RuntimeError) as error:
        return Outcome(name, None, first_sentence(str(error)))
