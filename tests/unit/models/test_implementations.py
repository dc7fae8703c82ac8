"""transformers' choices of attention: the same logits, refusals in a sentence, and the network as it was."""

import pytest
import torch

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


def test_an_error_of_the_forward_itself_is_a_refusal_too(network):
    [paged] = implementations(network, ["paged|eager"], lambda: network(IDS).logits)
    assert "without a paged attention cache" in paged.refusal and not paged.ran


def test_no_gradient_is_kept(network):
    [attempt] = implementations(network, ["sdpa"], lambda: network(IDS).logits)
    assert not attempt.output.requires_grad


def test_the_network_attends_as_before_afterwards_also_after_an_error(network):
    before = network.config._attn_implementation
    with attending(network, "eager") as same:
        assert same is network and network.config._attn_implementation == "eager" != before
    with pytest.raises(KeyError), attending(network, "eager"):
        raise KeyError
    assert network.config._attn_implementation == before
    implementations(network, ["eager", "nonsense"], lambda: network(IDS).logits)
    assert network.config._attn_implementation == before
