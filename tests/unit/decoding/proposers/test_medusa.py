"""Medusa: the state it reads, the tree it makes of it, the target's own text and distribution, and whom it refuses.

Longer than other files: text and distribution are one contract, held with the same heads.
"""

import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.distributions import correction_from_p, distribution_of, far_from, random_distribution, seeded
from support.examples import examples
from support.heads import OpenToy, heads_of, random_heads
from support.oracle import exact
from support.proposers import drafted
from support.targets import decoder_target, targets

from lessons_lib import Greedy, Medusa, Sampling, generate
from lessons_lib.decoding import sampling
from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput, plain_input
from lessons_lib.decoding.generate import new_sequence, step
from lessons_lib.decoding.proposers.tree_shape import regular
from lessons_lib.decoding.targets import Unsupported
from lessons_lib.decoding.targets.table import TableTarget
from lessons_lib.models import tiny
from lessons_lib.models.medusa import MedusaHeads

V, N = 11, 30
PROMPT = [5, 3, 3, 1, 7, 5, 3, 3, 1]
EVERY_TOKEN = [(i,) for i in range(V)] + [(i, j) for i in range(V) for j in range(4)]  # some path is always accepted
MODES = ["greedy", "iid", "without_replacement"]


@pytest.fixture(scope="module")
def network():
    return tiny(vocab_size=V)


@pytest.fixture(scope="module")
def greedy(network) -> list[int]:
    return network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0, len(PROMPT) :].tolist()


# the state that is read, and the tree that is made of it


class Watched(Medusa):
    """Notes which paths were accepted, and what was drafted first after which root."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.paths, self.pairs = [], []

    def propose(self, ids, tree):
        super().propose(ids, tree)
        self.pairs += [(tree.tokens[0], ids[-1])] if tree.tokens else []

    def observe(self, tree, path, tokens, scores):
        super().observe(tree, path, tokens, scores)
        self.paths.append(path)


def has_gaps(path: list[int]) -> bool:
    return path != list(range(len(path)))


@targets
def test_untrained_heads_draft_the_root_again_as_they_read_the_state_that_chose_it(network, greedy, target):
    proposer = Watched(MedusaHeads(network.get_output_embeddings().weight, 2), EVERY_TOKEN)
    out = generate(target(network), PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy
    assert len(proposer.pairs) > 8 and all(drafted == root for drafted, root in proposer.pairs)
    assert any(has_gaps(path) for path in proposer.paths)


def proposed(heads, state: torch.Tensor, limit: int = 9, **options) -> DraftTree:
    proposer = Medusa(heads, **options)
    proposer.reset(OpenToy(None, heads.vocab_size), [0])
    proposer.observe(DraftTree(), [], [1], ModelOutput(None, {"final": state[None]}))
    return drafted(proposer, [0, 1], max_depth=limit)


def test_a_choice_is_a_top_token_of_the_head_of_its_depth(network):
    heads, state = heads_of(network), torch.randn(32, generator=seeded(0), dtype=torch.float64)
    choices = [(0,), (2,), (0, 1), (2, 0), (2, 0, 3)]
    tree = proposed(heads, state, choices=choices)
    best = heads(state[None])[0].argsort(descending=True)
    assert tree.tokens == [best[0][0], best[0][2], best[1][1], best[1][0], best[2][3]]
    assert tree.parents == [ROOT, ROOT, 0, 1, 3] and tree.draft_calls == 0
    assert {children.mode for children in tree.children.values()} == {"greedy"}


def test_heads_that_read_the_root_get_the_last_committed_token(network):
    heads = random_heads(network.get_output_embeddings().weight, 2, root_rank=4)
    state = torch.randn(32, generator=seeded(0), dtype=torch.float64)
    best = {root: heads(state[None], chosen=[root])[0].argmax(-1).tolist() for root in (0, 1)}
    assert proposed(heads, state).tokens == best[1] != best[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_levels_that_cannot_be_used_are_not_drafted(network, mode, limit):
    tree = proposed(heads_of(network), torch.ones(32).double(), limit, choices=regular(2, 1, 1), mode=mode)
    assert tree.depth == limit


@pytest.mark.parametrize("mode", MODES[1:])
def test_samples_come_from_the_head_of_their_depth_and_say_so(network, mode):
    heads, state = heads_of(network), torch.randn(32, generator=seeded(0), dtype=torch.float64)
    rule = Sampling(temperature=0.5, top_k=4)
    tree = proposed(heads, state, choices=regular(3, 2), mode=mode, sampling=rule, generator=seeded(1))
    q = rule.probabilities(heads(state[None])[0])
    assert sum(len(children.tokens) for children in tree.children.values()) == 3 + 6
    for parent, children in tree.children.items():
        level = 0 if parent == ROOT else 1
        assert torch.equal(children.q, q[level]) and children.mode == mode
        assert all(q[level][token] > 0 for token in children.tokens)


def test_where_q_has_fewer_tokens_than_children_the_tree_shrinks(network):
    tree = proposed(
        heads_of(network), torch.ones(32).double(),
        choices=[*regular(4, 2).choices, (3, 1, 0)], mode="without_replacement", sampling=Sampling(top_k=2),
    )  # fmt: skip
    assert tree.parents == [ROOT, ROOT, 0, 0, 1, 1] and len(set(tree.tokens[:2])) == 2


# the same tokens as plain greedy decoding


@examples(25)
@given(
    seed=st.integers(0, 9),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=9),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    mode=st.sampled_from(MODES),
    own=st.booleans(),
    blocks=st.integers(1, 2),
    root_rank=st.integers(0, 3),
)
def test_greedy_text_is_kept_for_random_heads_and_trees(network, seed, prompt, widths, mode, own, blocks, root_rank):
    target, heads = decoder_target(network), network.get_output_embeddings().weight
    heads = random_heads(heads, 3, seed, own_lm_heads=own, blocks=blocks, root_rank=root_rank)
    proposer = Medusa(heads, regular(*widths), mode, generator=seeded(1))
    assert generate(target, prompt, proposer, max_new_tokens=16).ids == generate(target, prompt, max_new_tokens=16).ids


class AllKnowing(MedusaHeads):
    """Knows the text: scores the token that comes k + 1 places after the one that the state chose."""

    def __init__(self, text: list[int], count: int):
        super().__init__(torch.eye(V), count)
        self.text, self.at = text, None

    def scores(self, final, count=None, chosen=None):
        chosen = self.at - 1  # the root's position
        ahead = [self.text[min(chosen + k, len(self.text) - 1)] for k in range(1, 1 + (count or self.count))]
        return torch.eye(V)[ahead][None]


class Told(Medusa):
    def propose(self, ids, tree):
        self.heads.at = len(ids)
        super().propose(ids, tree)

    def observe(self, *seen):
        self.state = torch.zeros(V)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_heads_that_know_the_text_commit_one_token_more_than_there_are_heads(network, greedy, count):
    out = generate(network, PROMPT, Told(AllKnowing(PROMPT + greedy, count)), max_new_tokens=N)
    assert out.ids == greedy
    assert len(out.stats) == 1 + math.ceil((N - 1) / (count + 1))


# the cache


@targets
def test_after_paths_with_gaps_the_next_scores_are_those_of_a_fresh_pass(network, target):
    target, proposer = target(network), Watched(heads_of(network), EVERY_TOKEN)
    seq = new_sequence(target, PROMPT, proposer, Greedy(), 20)
    with exact(), torch.no_grad():
        while seq.finish_reason is None:
            step(target, [seq])
            again = [logits_after(target, seq.ids, cache) for cache in (seq.cache, None)]
            torch.testing.assert_close(*again, rtol=0, atol=1e-10)
    assert sum(has_gaps(path) for path in proposer.paths) > 3


def logits_after(target, ids: list[int], cache) -> torch.Tensor:
    """What follows the text: with the row's cache, which is left as it was, or read anew."""
    held = cache.length() if cache else 0
    lent = cache or target.new_cache(len(ids))
    (scores,) = target.run([plain_input(ids[held:], lent)])
    lent.keep(held)
    return scores.logits[0]


# the distribution of what is sampled


DISTRIBUTIONS = [
    pytest.param(3, 4, dict(choices=[(0,), (1,), (0, 0), (1, 0), (1, 1)]), id="top tokens"),
    pytest.param(3, 4, dict(choices=[(1,), (1, 0)]), id="a second token alone"),
    pytest.param(3, 4, dict(choices=[(0,), (0, 0)], mode="iid"), id="sampled chain"),
    pytest.param(2, 4, dict(choices=regular(2, 2), mode="iid"), id="sampled tree"),
    pytest.param(3, 3, dict(choices=[(0,), (1,)], mode="without_replacement"), id="without replacement"),
    pytest.param(2, 4, dict(choices=regular(2, 2), mode="without_replacement"), id="tree without replacement"),
    pytest.param(3, 4, dict(choices=regular(2, 1), mode="without_replacement", sampling=Sampling(top_k=1)), id="top 1"),
]


def sampled_distribution(target, count: int, rule=None, kind=Medusa, **options) -> dict:
    return distribution_of(
        target, kind(random_heads(torch.eye(target.vocab_size).double(), 2, seed=5), **options), count, rule
    )


@pytest.mark.parametrize("size, count, options", DISTRIBUTIONS)
def test_every_text_has_exactly_the_targets_probability(size, count, options):
    target = random_distribution(size, 1, OpenToy)
    assert far_from(sampled_distribution(target, count, **options), target, count) < 1e-12


def top_tokens(tree, parent, q, count, mode, generator):
    """Takes the most probable tokens, but says that they were sampled."""
    return [tree.add(parent, token, mode, q) for token in q.topk(count).indices.tolist()]


class Mislabelled(Medusa):
    """Says that every level was sampled from the first head's distribution."""

    def sample(self, tree, q):
        super().sample(tree, q)
        tree.children = {node: replace(children, q=q[0]) for node, children in tree.children.items()}


def test_top_tokens_judged_as_samples_are_caught():
    target = random_distribution(3, 1, OpenToy)
    with mock.patch("lessons_lib.decoding.proposers.medusa.sample_children", top_tokens):
        assert far_from(sampled_distribution(target, 3, choices=[(0,), (1,)], mode="iid"), target, 3) > 0.01


def test_rows_of_another_head_are_caught():
    target = random_distribution(3, 1, OpenToy)
    assert (
        far_from(sampled_distribution(target, 4, kind=Mislabelled, choices=[(0,), (0, 0)], mode="iid"), target, 4)
        > 0.01
    )


def test_a_wrong_correction_is_caught():
    target = random_distribution(3, 1, OpenToy)
    with mock.patch.object(sampling, "choose_child", correction_from_p):
        assert far_from(sampled_distribution(target, 4, choices=[(0,), (0, 0)]), target, 4) > 0.01


# whom it refuses


def test_a_target_without_states_is_refused():
    with pytest.raises(Unsupported, match="Medusa needs states, which TableTarget does not offer"):
        generate(TableTarget([[0.5, 0.5], [0.5, 0.5]]), [0], Medusa(MedusaHeads(torch.eye(2))))


@pytest.mark.parametrize("other, said", [
    (dict(vocab_size=V + 1), "score 11 tokens, but the target has 12"),
    (dict(vocab_size=V, width=64), "read states of width 32, but the target's have 64"),
])  # fmt: skip
def test_a_target_of_another_size_is_refused(network, other, said):
    with pytest.raises(ValueError, match=said):
        generate(tiny(**other), PROMPT, Medusa(heads_of(network)), max_new_tokens=4)


@pytest.mark.parametrize("bad, said", [
    (dict(mode="best"), "mode 'best' is unknown"),
    (dict(sampling=Sampling()), 'mode "greedy" samples nothing'),
    (dict(choices=regular(1, 1, 1, 1)), "the tree is 4 deep and 1 ranks wide, too much for 3 heads"),
    (dict(choices=[(V,)]), "12 ranks wide"),
])  # fmt: skip
def test_impossible_settings_are_refused(network, bad, said):
    with pytest.raises(ValueError, match=said):
        Medusa(heads_of(network), **bad)


def test_a_target_in_another_dtype_than_the_heads_is_read_all_the_same(network):
    out = generate(tiny(vocab_size=V, dtype=torch.float32), PROMPT, Medusa(heads_of(network)), max_new_tokens=6)
    assert len(out.ids) == 6
