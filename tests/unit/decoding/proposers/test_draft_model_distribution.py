"""Assisted decoding under sampling: the text follows the target's distribution, whatever is drafted (lesson 06)."""

from collections import Counter
from unittest import mock

import pytest
import torch
from support.distributions import distribution_of, far_from, random_distribution, seeded
from support.toys import ToyTarget, constant

from lessons_lib import DraftModel, Sampling, generate
from lessons_lib.decoding import generate as loop
from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.proposers import draft_model
from lessons_lib.decoding.proposers.draft_length import Confidence
from lessons_lib.decoding.sampling import draw
from lessons_lib.measure.cost import acceptance_rate, expected_tokens
from lessons_lib.measure.quality import chi_square


def sampled(target, proposer, seed: int, count: int):
    return generate(target, [0], proposer, Sampling(), count, generator=seeded(seed))


DISTRIBUTIONS = [
    pytest.param(3, 4, dict(mode="unsampled"), id="greedy draft"),
    pytest.param(3, 4, dict(mode="iid"), id="chain"),
    pytest.param(2, 5, dict(mode="iid"), id="long chain"),
    pytest.param(3, 4, dict(mode="unsampled", children=(2,)), id="top-k tree"),
    pytest.param(2, 4, dict(mode="iid", children=(2, 2)), id="sampled tree"),
    pytest.param(3, 3, dict(mode="iid", children=(3,)), id="three draws, some of them repeated"),
    pytest.param(3, 3, dict(mode="without_replacement", children=(2,)), id="without replacement"),
    pytest.param(2, 4, dict(mode="without_replacement", children=(2, 2)), id="tree without replacement"),
    pytest.param(2, 5, dict(mode="iid", gamma=Confidence(3, 0.6)), id="stops after doubt"),
    pytest.param(3, 4, dict(mode="iid", sampling=Sampling(2.0, top_k=2)), id="other sampling than the target's"),
]


@pytest.mark.parametrize("size, count, shape", DISTRIBUTIONS)
def test_every_text_has_exactly_the_targets_probability(size, count, shape):
    target, shape = random_distribution(size, seed=1), dict(gamma=count - 2) | shape
    distribution = distribution_of(target, DraftModel(random_distribution(size, seed=2), **shape), count)
    assert far_from(distribution, target, count) < 1e-12


def takes_the_most_probable(tree, parent, q, count, mode, generator):
    """Says that it sampled what it chose."""
    return [tree.add(parent, int(q.argmax()), mode, q)]


def throws_improbable_ones_away(tree, parent, q, count, mode, generator):
    """Samples, but keeps only what the draft itself holds probable."""
    (token,) = draw(q, 1, generator)
    return [tree.add(parent, token, mode, q)] if q[token] >= 0.4 else []


@pytest.mark.parametrize("wrong", [takes_the_most_probable, throws_improbable_ones_away])
def test_a_biased_draft_is_caught(wrong):
    target = random_distribution(3, seed=1)
    with mock.patch.object(draft_model, "sample_children", wrong):
        distribution = distribution_of(target, DraftModel(random_distribution(3, seed=2), 2, "iid"), 4)
    assert far_from(distribution, target, 4) > 0.01


# a tree that is cut to what fits


class Trimmed(DraftModel):
    """Drafts for a pass that takes no more than `most` draft tokens."""

    most = 1

    def propose(self, ids, tree):
        tree.max_nodes = self.most
        super().propose(ids, tree)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("mode", ["unsampled", "iid", "without_replacement"])
def test_a_tree_cut_to_a_node_budget_keeps_the_targets_probabilities(mode, most):
    target, proposer = random_distribution(2, seed=1), Trimmed(random_distribution(2, seed=2), 2, mode, (2, 2))
    proposer.most = most
    assert far_from(distribution_of(target, proposer, 4), target, 4) < 1e-12


class RepeatsAreFree(DraftTree):
    """Wrong on purpose: where no new node fits, a repeated token is kept and another one is dropped, by its value."""

    def add(self, parent, token, mode="unsampled", q=None):
        known = self.child(parent, token)
        if known is None or self.fits(parent):
            return super().add(parent, token, mode, q)
        self.children[parent].tokens.append(token)
        return known


@pytest.mark.parametrize("kind, caught", [(DraftTree, False), (RepeatsAreFree, True)])
def test_a_cut_that_looks_at_the_tokens_is_caught(kind, caught):
    target, proposer = random_distribution(3, seed=1), Trimmed(random_distribution(3, seed=2), 1, "iid", (2,))
    with mock.patch.object(loop, "DraftTree", kind):
        assert (far_from(distribution_of(target, proposer, 3), target, 3) > 1e-3) == caught


class Forgetful(DraftTree):
    """Wrong on purpose: forgets how often a token was sampled."""

    def add(self, parent, token, mode="unsampled", q=None):
        known = self.child(parent, token)
        return super().add(parent, token, mode, q) if known is None else known


class Sorted(DraftTree):
    """Wrong on purpose: keeps the sampled tokens in the order of their ids."""

    def add(self, parent, token, mode="unsampled", q=None):
        node = super().add(parent, token, mode, q)
        self.children[parent].tokens.sort()
        return node


@pytest.mark.parametrize("kind", [Forgetful, Sorted])
def test_a_tree_that_forgets_how_it_was_sampled_is_caught(kind):
    target, proposer = random_distribution(3, seed=1), DraftModel(random_distribution(3, seed=2), 1, "iid", (3,))
    with mock.patch.object(loop, "DraftTree", kind):
        assert far_from(distribution_of(target, proposer, 3), target, 3) > 1e-3


class Reseeded(DraftModel):
    """Starts the same random numbers anew for every step."""

    def propose(self, ids, tree):
        self.generator.manual_seed(0)
        super().propose(ids, tree)


@pytest.mark.parametrize("kind, caught", [(DraftModel, False), (Reseeded, True)])
def test_sampled_pairs_follow_the_targets_distribution(kind, caught):
    """Chi-square over what follows each of four tokens; the target is a Markov chain."""
    p, q = ((2 * torch.randn(2, 4, 4, generator=seeded(5), dtype=torch.float64)).softmax(-1)).unbind()
    target, draft = (ToyTarget(lambda prefix, t=t: t[prefix[-1]].log(), 4) for t in (p, q))
    counts = torch.zeros(4, 4)
    proposer = kind(draft, 3, "iid", generator=seeded(6))
    for seed in range(10):
        text = sampled(target, proposer, seed, 200).ids
        for pair, times in Counter(zip(text, text[1:], strict=False)).items():
            counts[pair] += times
    least = min(chi_square(row, distribution)[1] for row, distribution in zip(counts, p, strict=True))
    assert (least < 1e-3 / 4) == caught


def test_accepted_tokens_follow_the_capped_geometric_distribution():
    """p and q the same after every prefix: each draft token is accepted with probability sum(min(p, q)) = 0.7."""
    p, q = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
    draft = DraftModel(constant(q), 3, "iid", generator=seeded(3))
    steps = [s for seed in range(8) for s in sampled(constant(p), draft, seed, 200).stats[1:-3]]
    committed = torch.tensor([float(s.committed) for s in steps])
    error = committed.std() / len(steps) ** 0.5
    assert abs(committed.mean() - expected_tokens(0.7, 3)) < 3 * error
    assert acceptance_rate(steps) == pytest.approx(0.7, abs=0.03)
