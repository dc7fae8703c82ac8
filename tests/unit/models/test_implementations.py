"""transformers' choices of attention: the dtype that FlashAttention needs, and the network as it was."""

import pytest
import torch
from transformers.integrations.flash_attention import get_target_dtype
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lessons_lib.models import tiny
from lessons_lib.models.implementations import attending

IDS = torch.arange(12)[None]


@pytest.fixture
def network():
    return tiny()


@pytest.mark.parametrize("name, dtype, wanted", [
    ("flash_attention_2", torch.float32, torch.bfloat16),
    ("flash_attention_2", torch.float16, torch.float16),
    ("other", torch.float32, torch.float32),
])  # fmt: skip
def test_flash_attentions_packages_get_sixteen_bits(network, monkeypatch, name, dtype, wanted):
    asked = []

    def attend(module, query, *given, **options):  # where transformers would hand over to the package
        asked.append(get_target_dtype(query, module) or query.dtype)
        return torch.zeros_like(query).transpose(1, 2), None

    def switch(self, name):  # without asking whether the package is installed
        self.config._attn_implementation = name

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, attend)
    monkeypatch.setattr(type(network), "set_attn_implementation", switch)
    with attending(network.to(dtype), name):
        network(IDS)
    assert asked == [wanted] * len(network.model.layers) and not torch.is_autocast_enabled("cpu")


def test_the_network_attends_as_before_afterwards_also_after_an_error(network):
    before = network.config._attn_implementation
    with attending(network, "eager") as same:
        assert same is network and network.config._attn_implementation == "eager" != before
    with pytest.raises(KeyError), attending(network, "eager"):
        raise KeyError
    assert network.config._attn_implementation == before
