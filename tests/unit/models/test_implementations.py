"""transformers' choices of attention: the same logits, refusals in a sentence, and the network as it was."""

import pytest
import torch
from transformers.integrations.flash_attention import get_target_dtype
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lessons_lib.models import tiny
from lessons_lib.models.implementations import attending, implementations

IDS = torch.arange(12)[None]


@pytest.fixture
def network():
    return tiny()


def test_what_runs_gives_the_same_logits_and_what_does_not_says_why(network):
    eager, sdpa, none = implementations(network, ["eager", "sdpa", "nonsense"], lambda: network(IDS).logits)
    assert eager.ran and sdpa.ran and not none.ran
    torch.testing.assert_close(eager.output, sdpa.output, rtol=0, atol=1e-5)  # eager's softmax is float32's
    assert none.refusal == 'Specified `attn_implementation="nonsense"` is not supported.'


def test_an_error_of_the_pass_itself_is_a_refusal_too(network):
    [paged] = implementations(network, ["paged|eager"], lambda: network(IDS).logits)
    assert "without a paged attention cache" in paged.refusal and not paged.ran


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
    implementations(network, ["eager", "nonsense"], lambda: network(IDS).logits)
    assert network.config._attn_implementation == before
