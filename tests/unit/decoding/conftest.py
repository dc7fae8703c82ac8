"""A network and its greedy text, which most tests of decoding compare with."""

import pytest
import torch
from support.oracle import PROMPT, N

from lessons_lib.models import tiny


@pytest.fixture(scope="module")
def network():
    return tiny()


@pytest.fixture(scope="module")
def greedy_text(network) -> list[int]:
    """transformers' own greedy text, prompt included."""
    return network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0].tolist()


@pytest.fixture(scope="module")
def greedy(greedy_text) -> list[int]:
    """Its new tokens."""
    return greedy_text[len(PROMPT) :]
