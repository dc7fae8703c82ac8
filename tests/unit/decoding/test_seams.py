"""The seams that later techniques are built on: what a pass may leave out, see beside the text, or take back; nesting.

Unequal lengths of a cache's layers: tests/unit/caches. Rows with proposers of their own: test_generate.py.
"""

import pytest
import torch
from support.distributions import distribution_of, far_from, random_distribution
from support.oracle import exact
from support.proposers import tree_of
from support.targets import decoder_target, entries, targets
from support.toys import ToyTarget

from lessons_lib import PromptLookup, Sampling, generate
from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.decoding.draft_tree import ROOT, DraftTree, SideTokens, make_input, plain_input
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import TransformersTarget, Unsupported
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder, Segment

PROMPT = [5, 80, 3, 3, 61]


@pytest.fixture(autouse=True)
def _exactly():
    with exact(), torch.no_grad():
        yield


def fed(target, tokens):
    """A cache that holds these tokens."""
    target.run([plain_input(tokens, cache := target.new_cache(len(tokens)))])
    return cache


@targets
def test_a_pass_whose_entries_are_all_dropped_leaves_no_trace(target):
    """Read-only: branches and side tokens are looked at beside the text, which then goes on as if nobody had asked."""
    target = target(tiny())
    cache = fed(target, PROMPT)
    before = [entry.clone() for entry in entries(cache)]
    tree = tree_of([7, 8, 9], [-1, -1, 1])
    tree.add_side(SideTokens([1, 2], [1, 2], [[False] * 2, [True, False]]))
    (scores,) = target.run([make_input([4], tree, cache)])
    assert scores.logits.shape == (1 + 3 + 2, 97) and cache.length() == len(PROMPT) + 1 + 3 + 2
    cache.keep(len(PROMPT))
    assert cache.length() == len(PROMPT)
    assert all(torch.equal(*pair) for pair in zip(entries(cache), before, strict=True))


@targets
def test_a_side_token_sees_the_nodes_that_it_names(target):
    """A side token that sees 7 and 8 gets what 9 gets after 7, 8, though another branch is beside them."""
    target = target(tiny())
    tree = tree_of([6, 7, 8], [-1, -1, 1])
    tree.add_side(SideTokens([9], [3], [[False]], sees_nodes=[[1, 2]]))
    (scores,) = target.run([make_input([4], tree, fed(target, PROMPT))])
    (chain,) = target.run([plain_input([4, 7, 8, 9], fed(target, PROMPT))])
    torch.testing.assert_close(scores.logits[-1], chain.logits[-1], rtol=0, atol=1e-12)


def test_the_first_layers_may_draft_and_the_others_go_on_from_their_states():
    """Draft tokens 7 | 8, 9 run through layer 1 alone, 8, 9 are kept of them, and layer 2 goes on from their states."""
    decoder = Decoder.from_transformers(tiny())
    c, mask = decoder.config, torch.ones(3, 8, dtype=torch.bool).tril(5)
    mask[1:, 5] = False  # 8 and 9 do not see 7
    cache = ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64, capacity=5)
    decoder(torch.tensor(PROMPT), [Segment(torch.arange(5), cache)])
    drafted = decoder(torch.tensor([7, 8, 9]), [Segment(torch.tensor([5, 5, 6]), cache, mask)], layers=range(1)).last
    assert (cache.length(0), cache.length(1)) == (8, 5)
    cache.keep(5, [6, 7])
    assert (cache.length(0), cache.length(1)) == (7, 5)
    rest = [Segment(torch.tensor([5, 6]), cache)]
    found = decoder(torch.tensor([8, 9]), rest, layers=range(1, 2), states=drafted[1:]).last
    whole = ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64)
    expected = decoder(torch.tensor([*PROMPT, 8, 9]), [Segment(torch.arange(7), whole)]).last[-2:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for one, other in zip(entries(cache), entries(whole), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_sequences_of_unequal_length_get_in_one_pass_what_each_gets_alone():
    """Logits, and the states of the layers that each sequence asks for."""
    target = decoder_target(tiny())
    asked = [([4, 7], DraftTree(), PROMPT, (1,)), ([9], tree_of([7, 8], [-1, -1]), PROMPT[:2], ("final", 2))]
    inputs = lambda: [make_input(new, tree, fed(target, text), after) for new, tree, text, after in asked]  # noqa: E731
    for together, model_input in zip(target.run(inputs()), inputs(), strict=True):
        (alone,) = target.run([model_input])
        torch.testing.assert_close(together.logits, alone.logits, rtol=0, atol=1e-12)
        assert together.states.keys() == alone.states.keys() == set(model_input.after)
        for name in model_input.after:
            assert together.states[name].shape == (model_input.wanted, 32)
            torch.testing.assert_close(together.states[name], alone.states[name], rtol=0, atol=1e-12)


def test_a_state_that_transformers_gives_only_after_the_final_norm_is_refused():
    target = TransformersTarget(tiny())
    with pytest.raises(Unsupported, match="layer 2's state only after the final norm: ask for 'final'"):
        target.run([make_input(PROMPT, DraftTree(), target.new_cache(5), (2,))])


class Before(Proposer):
    """Asks for the states before the first layer."""

    after = (0,)

    def propose(self, ids, tree):
        pass


@targets
def test_states_before_the_first_layer_are_refused_whatever_the_target(target):
    with pytest.raises(ValueError, match="no state is returned after layer 0; ask for layer 1 or later"):
        generate(target(tiny()), PROMPT, Before(), max_new_tokens=2)


def test_states_before_the_layer_at_which_tokens_enter_are_refused():
    tree = DraftTree()
    tree.first_layer = 1
    with pytest.raises(ValueError, match="after layer 1; ask for layer 2"):
        make_input(PROMPT, tree, None, (1,))


class Inner(PromptLookup):
    """Helps an inner loop, and notes for every token the distribution that it was sampled from."""

    def __init__(self, rule, row_of):
        super().__init__(max_ngram=1)
        self.rule, self.row_of, self.sampled = rule, row_of, []

    def observe(self, tree, path, tokens, scores):
        super().observe(tree, path, tokens, scores)
        rows = [self.row_of(node) for node in (ROOT, *path)]  # the last row of an accepted path gave the bonus token
        self.sampled += zip(tokens, self.rule.probabilities(scores.logits[rows]), strict=True)


class Nested(Proposer):
    """Drafts by an inner speculative loop, whose target is the draft of the outer one."""

    def __init__(self, inner, rule, row_of=lambda node: 1 + node):
        self.inner, self.rule, self.row_of = inner, rule, row_of

    def propose(self, ids, tree):
        by, parent = Inner(self.rule, self.row_of), ROOT
        generate(self.inner, ids, by, self.rule, max_new_tokens=3)
        for token, q in by.sampled:
            parent = parent if parent is None else tree.add(parent, token, "iid", q)


def certain_at(length: int, seed: int) -> ToyTarget:
    """A random distribution that has but one token to follow a text of this length: fewer texts to go through."""
    distribution = random_distribution(2, seed)
    return ToyTarget(lambda ids: torch.tensor([0.0, -torch.inf]) if len(ids) == length else distribution.logits(ids), 2)


def distance_of_nested(row_of=lambda node: 1 + node) -> float:
    """How far the exact distribution of the texts is from the target's."""
    target, draft = certain_at(1, seed=1), certain_at(2, seed=2)
    return far_from(distribution_of(target, Nested(draft, Sampling(), row_of), 5), target, 5)


def test_an_inner_loop_says_what_it_sampled_from_and_the_outer_text_keeps_the_targets_distribution():
    assert distance_of_nested() < 1e-12


def test_an_inner_loop_that_names_another_distribution_is_caught():
    assert distance_of_nested(lambda node: 0) > 1e-3
