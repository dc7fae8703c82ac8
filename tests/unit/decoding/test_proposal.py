"""Proposals and the trees made of them; masks and offsets of the forward that verifies them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.decoding.blocks import make_block
from lessons_lib.decoding.draft_tree import Proposal, Scratch, Tree

trees = st.integers(0, 9).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 3), min_size=size, max_size=size),
        st.tuples(*(st.integers(-1, node - 1) for node in range(size))),
    )
)


def ancestors(tree: Tree, node: int) -> set[int]:
    return {node} | (ancestors(tree, tree.parents[node]) if tree.parents[node] >= 0 else set())


def texts(tokens, parents) -> set[tuple[int, ...]]:
    """The text from the root to every node."""
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((found[parent] if parent >= 0 else ()) + (token,))
    return set(found)


@given(trees, st.integers(0, 9))
def test_merging_keeps_every_text_and_no_text_twice(shape, limit):
    tokens, parents = shape
    tree = Tree.of(Proposal(tokens, parents), limit)
    kept = {text for text in texts(tokens, parents) if len(text) <= limit}
    assert texts(tree.tokens, tree.parents) == kept
    assert len(tree.tokens) == len(kept)


@given(trees, st.integers(1, 3))
def test_each_node_sees_the_committed_text_and_exactly_its_ancestors(shape, lacking):
    tree = Tree.of(Proposal(*shape), limit=9)
    block = make_block(list(range(lacking)), tree, None, cache_of(4))
    if block.mask is None:
        assert tree.is_chain
        return
    first = 4 + lacking
    for node in range(len(tree.tokens)):
        seen = set(block.mask[lacking + node].nonzero().flatten().tolist())
        assert seen == set(range(first)) | {first + a for a in ancestors(tree, node)}
        assert block.offsets[lacking + node] == lacking - 1 + len(ancestors(tree, node))


def test_scratch_sees_what_it_declares_and_nothing_sees_scratch():
    tree = Tree.of(Proposal([7, 8], [-1, -1]), limit=3)
    scratch = Scratch([1, 2], [1, 5], [[False, False], [True, False]], sees_tree=[[], [1]])
    block = make_block([9], tree, scratch, cache_of(2))
    # entries: 2 cached, anchor, two nodes, two scratch
    assert block.mask.int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 1, 1, 1],
    ]
    assert block.offsets == [0, 1, 1, 1, 5]
    assert block.tokens == [9, 7, 8, 1, 2]
    assert block.wanted == 5


def test_scratch_sees_the_nodes_that_its_own_became_and_none_that_were_cut():
    tree = Tree.of(Proposal([7, 7, 8, 9], [-1, -1, 1, 2]), limit=2)  # the second 7 is the first, 9 is too deep
    scratch = Scratch([1, 2], [3, 3], [[False, False]] * 2, sees_tree=[[1, 2], [3]])
    block = make_block([6], tree, scratch, cache_of(0))
    assert block.tokens == [6, 7, 8, 1, 2] and tree.is_chain
    assert block.mask[3:].int().tolist() == [[1, 1, 1, 1, 0], [1, 0, 0, 0, 1]]


def test_a_chain_needs_no_mask():
    assert make_block([9], Tree.of(Proposal.chain([1, 2, 3]), 3), None, cache_of(2)).mask is None


def test_draws_follow_merged_nodes():
    q = {-1: torch.tensor([0.5, 0.5]), 0: torch.tensor([1.0, 0.0]), 1: torch.tensor([1.0, 0.0])}
    tree = Tree.of(Proposal([1, 1, 0, 0], [-1, -1, 0, 1], mode="iid", q=q), limit=2)
    assert tree.tokens == [1, 0] and tree.merged == [0, 0, 1, 1]
    assert tree.draws == {-1: [1, 1], 0: [0, 0]}
    assert set(tree.q) == {-1, 0}


@pytest.mark.parametrize("make, said", [
    (lambda: Proposal([1, 2], [-1]), "2 tokens but 1 parents"),
    (lambda: Proposal([1, 2], [1, -1]), "node 0 stands before its parent 1"),
    (lambda: Proposal([1], [-1], mode="best"), "mode 'best' is unknown"),
    (lambda: Proposal([1], [-1], mode="iid"), "needs the row of q for every parent; -1 has none"),
    (lambda: Proposal([1], [-1], mode="iid", q={-1: torch.tensor([float("nan")])}), "NaN"),
    (lambda: Proposal(scratch=Scratch([1], [1, 2], [[True]])), "scratch needs one offset"),
])  # fmt: skip
def test_malformed_proposals_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def cache_of(length: int) -> ContiguousCache:
    cache = ContiguousCache(1, 1, 2, torch.float32)
    cache.append(0, torch.zeros(1, length, 2), torch.zeros(1, length, 2))
    return cache


@given(trees)
def test_the_first_chain_follows_first_draws_and_forgets_all_else(nodes):
    tokens, parents = nodes
    q = {parent: torch.full((4,), 0.25) for parent in parents}
    tree = Tree.of(Proposal(tokens, parents, "iid", q), limit=10)
    chain = tree.first_chain()
    node, text = -1, []
    while children := [child for child, parent in enumerate(parents) if tree_node(tree, parent) == node]:
        node = tree.merged[children[0]]
        text.append(tree.tokens[node])
    assert chain.tokens == text and chain.is_chain and chain.mode == "iid"
    assert chain.draws == {depth - 1: [token] for depth, token in enumerate(text)}
    assert set(chain.q) >= set(chain.draws)
    for theirs, merged in enumerate(tree.merged):
        if chain.merged[theirs] is not None:
            assert chain.tokens[chain.merged[theirs]] == tree.tokens[merged]
    assert {node for node in chain.merged if node is not None} == set(range(len(text)))


def tree_node(tree: Tree, node: int) -> int:
    return node if node < 0 else tree.merged[node]
