"""A network and its greedy text, which most tests of decoding compare with."""

import pytest
from support.oracle import PROMPT, greedy_text_of

from lessons_lib.models import tiny


@pytest.fixture(scope="module")
def network():
    return tiny()


@pytest.fixture(scope="module")
def greedy_text(network) -> list[int]:
    """transformers' own greedy text, prompt included."""
    return greedy_text_of(network)


@pytest.fixture(scope="module")
def greedy(greedy_text) -> list[int]:
    """Its new tokens."""
    return greedy_text[len(PROMPT) :]
