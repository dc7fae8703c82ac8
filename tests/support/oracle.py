"""transformers as an oracle: its greedy text, and its Llama with norms and angles in float64 (it keeps float32)."""

from contextlib import contextmanager
from unittest import mock

import torch
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral

PROMPT, N = [5, 80, 3, 3, 61], 24  # of the greedy texts that tests of decoding compare with


def greedy_text_of(network) -> list[int]:
    """PROMPT and the N tokens that transformers' own greedy decoding writes after it."""
    return network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0].tolist()


def _norm(self, x):
    return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon).sqrt()


def _angles(self, x, position_ids):
    dim = self.inv_freq.shape[0] * 2
    theta = self.config.rope_parameters["rope_theta"]
    frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = position_ids[..., None].double() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


@contextmanager
def exact():
    """Within it, transformers' Llama and Mistral compute in float64 throughout (with sdpa attention)."""
    with (
        mock.patch.object(modeling_llama.LlamaRMSNorm, "forward", _norm),
        mock.patch.object(modeling_llama.LlamaRotaryEmbedding, "forward", _angles),
        mock.patch.object(modeling_mistral.MistralRMSNorm, "forward", _norm),
        mock.patch.object(modeling_mistral.MistralRotaryEmbedding, "forward", _angles),
    ):
        yield
