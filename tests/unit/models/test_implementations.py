"""transformers' choices of attention: switched, and afterwards as before."""

import pytest

from lessons_lib.models import tiny
from lessons_lib.models.implementations import attending


def test_the_network_attends_as_before_afterwards_also_after_an_error():
    network = tiny()
    before = network.config._attn_implementation
    with attending(network, "eager") as same:
        assert same is network and network.config._attn_implementation == "eager" != before
    with pytest.raises(KeyError), attending(network, "eager"):
        raise KeyError
    assert network.config._attn_implementation == before
