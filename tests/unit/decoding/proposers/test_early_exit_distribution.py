"""EarlyExit under sampling: the text follows the target's distribution, whatever the exit drafts (lesson 13)."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from support.distributions import correction_from_p, distribution_of, far_from
from support.proposers import Forgetful, FreshExits
from support.targets import decoder_target
from torch import nn

from lessons_lib import EarlyExit, Sampling
from lessons_lib.decoding import sampling
from lessons_lib.decoding.generate import new_sequence, step
from lessons_lib.decoding.proposers import early_exit
from lessons_lib.decoding.proposers.draft_length import Confidence
from lessons_lib.decoding.sampling import draw
from lessons_lib.models import tiny

RULE = Sampling(temperature=4.0)  # makes the small models' distributions flat, so that a bias shows


class Shifting(nn.Module):
    """An exit adapter that changes q."""

    def forward(self, states):
        return states + states.roll(1, -1)


def distance(size: int, count: int, exit_layer: int = 1, draft_tokens=2, **options) -> float:
    """The largest error of a text's exact probability, over all texts of `count` tokens of a vocabulary of `size`."""
    target = decoder_target(tiny(3, vocab_size=size))
    logits = lambda ids: target.decoder.read(ids)[-1] / RULE.temperature  # noqa: E731
    if exits := options.pop("exits", ()):
        proposer = FreshExits(exits, partial(Forgetful, 0.05, most=2), **options)
        assert_all_are_taken(proposer, target, count)
    else:
        proposer = EarlyExit(exit_layer, draft_tokens, **options)
    return far_from(
        distribution_of(target, proposer, count, RULE), SimpleNamespace(vocab_size=size, logits=logits), count
    )


def assert_all_are_taken(proposer, target, count):
    """Else the exit would not change from step to step, and nothing new be tested."""
    taken, generators = set(), [torch.Generator().manual_seed(seed) for seed in range(20)]
    for generator in generators:
        seq = new_sequence(target, [0], proposer, RULE, 8 * count, generator=generator)
        with torch.no_grad():
            while seq.finish_reason is None:
                step(target, [seq])
                taken |= {seq.tree.first_layer} if seq.tree and seq.tree.tokens else set()
    assert taken == set(proposer.lengths)


DRAFTS = [
    pytest.param(3, 3, dict(), id="argmax"),
    pytest.param(2, 4, dict(), id="two argmaxes"),
    pytest.param(3, 3, dict(sampling=RULE), id="sampled"),
    pytest.param(2, 4, dict(sampling=RULE, exit_layer=2), id="two sampled tokens"),
    pytest.param(2, 4, dict(sampling=Sampling(0.7)), id="other sampling than the target's"),
    pytest.param(3, 3, dict(sampling=RULE, vocabulary=torch.tensor([0, 2])), id="short vocabulary"),
    pytest.param(3, 4, dict(vocabulary=torch.tensor([1])), id="short vocabulary, argmax"),
    pytest.param(2, 4, dict(sampling=RULE, adapter=Shifting()), id="adapter"),
    pytest.param(2, 4, dict(sampling=RULE, draft_tokens=Confidence(2, 0.5)), id="stops after doubt"),
    pytest.param(2, 4, dict(sampling=RULE, exits=(1, 2)), id="several exits"),
]


@pytest.mark.parametrize("size, count, options", DRAFTS)
def test_every_text_has_exactly_the_targets_probability(size, count, options):
    assert distance(size, count, **options) < 1e-12


def takes_the_most_probable(tree, parent, q, count, mode, generator):
    """Says that it sampled what it chose."""
    return [tree.add(parent, int(q.argmax()), mode, q)]


def names_another_distribution(tree, parent, q, count, mode, generator):
    """Samples from q, but records a flat distribution."""
    return [tree.add(parent, draw(q, 1, generator)[0], mode, torch.full_like(q, 1 / len(q)))]


@pytest.mark.parametrize("wrong", [takes_the_most_probable, names_another_distribution])
@pytest.mark.parametrize("vocabulary", [None, torch.tensor([0, 2])], ids=["all tokens", "short vocabulary"])
def test_a_draft_that_records_another_distribution_than_its_own_is_caught(wrong, vocabulary):
    with mock.patch.object(early_exit, "sample_children", wrong):
        assert distance(3, 3, sampling=RULE, vocabulary=vocabulary) > 0.001


def test_a_wrong_acceptance_rule_is_caught():
    with mock.patch.object(sampling, "choose_child", correction_from_p):
        assert distance(3, 3, sampling=RULE) > 0.001
