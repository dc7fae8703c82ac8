"""Medusa: the state it reads, the tree it makes of it, the target's own text and distribution, and whom it refuses."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.distributions import correction_from_p, distribution_of, far_from, random_distribution, seeded
from support.examples import examples
from support.heads import OpenToy, heads_of, random_heads
from support.proposers import drafted
from support.targets import decoder_target, targets

from lessons_lib import Medusa, generate
from lessons_lib.decoding import sampling
from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput
from lessons_lib.decoding.proposers.medusa import MedusaHeads
from lessons_lib.decoding.proposers.tree_shape import regular
from lessons_lib.decoding.targets import Unsupported
from lessons_lib.decoding.targets.table import TableTarget
from lessons_lib.models import tiny

V, N = 11, 30
PROMPT = [5, 3, 3, 1, 7, 5, 3, 3, 1]
EVERY_TOKEN = [(i,) for i in range(V)] + [(i, j) for i in range(V) for j in range(4)]  # some path is always accepted


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
    assert {children.mode for children in tree.children.values()} == {"unsampled"}


def test_heads_that_read_the_root_get_the_last_committed_token(network):
    heads = random_heads(network.get_output_embeddings().weight, 2, root_rank=4)
    state = torch.randn(32, generator=seeded(0), dtype=torch.float64)
    best = {root: heads(state[None], chosen=[root])[0].argmax(-1).tolist() for root in (0, 1)}
    assert proposed(heads, state).tokens == best[1] != best[0]


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_levels_that_cannot_be_used_are_not_drafted(network, limit):
    tree = proposed(heads_of(network), torch.ones(32).double(), limit, choices=regular(2, 1, 1))
    assert tree.depth == limit


# the same tokens as plain greedy decoding


@examples(25)
@given(
    seed=st.integers(0, 9),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=9),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    blocks=st.integers(1, 2),
    root_rank=st.integers(0, 3),
)
def test_greedy_text_is_kept_for_random_heads_and_trees(network, seed, prompt, widths, blocks, root_rank):
    target, heads = decoder_target(network), network.get_output_embeddings().weight
    heads = random_heads(heads, 3, seed, blocks=blocks, root_rank=root_rank)
    proposer = Medusa(heads, regular(*widths))
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


# the distribution of what is sampled


def error_of_distribution(choices) -> float:
    target = random_distribution(3, 1, OpenToy)
    by = Medusa(random_heads(torch.eye(3).double(), 2, seed=5), choices)
    return far_from(distribution_of(target, by, 4), target, 4)


@pytest.mark.parametrize("choices", [
    pytest.param([(0,), (1,), (0, 0), (1, 0), (1, 1)], id="top tokens"),
    pytest.param([(1,), (1, 0)], id="a second token alone"),
])  # fmt: skip
def test_every_text_has_exactly_the_targets_probability(choices):
    assert error_of_distribution(choices) < 1e-12


def test_a_wrong_correction_is_caught():
    with mock.patch.object(sampling, "choose_child", correction_from_p):
        assert error_of_distribution([(0,), (0, 0)]) > 0.01


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
    (dict(choices=regular(1, 1, 1, 1)), "the tree is 4 deep and 1 ranks wide, too much for 3 heads"),
    (dict(choices=[(V,)]), "12 ranks wide"),
])  # fmt: skip
def test_impossible_settings_are_refused(network, bad, said):
    with pytest.raises(ValueError, match=said):
        Medusa(heads_of(network), **bad)


def test_a_target_in_another_dtype_than_the_heads_is_read_all_the_same(network):
    out = generate(tiny(vocab_size=V, dtype=torch.float32), PROMPT, Medusa(heads_of(network)), max_new_tokens=6)
    assert len(out.ids) == 6
