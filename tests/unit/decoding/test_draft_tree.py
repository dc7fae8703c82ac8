"""Draft trees as proposers build them, and the masks and offsets of the pass that verifies them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.proposers import tree_of

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.decoding.draft_tree import ROOT, DraftTree, SideTokens, make_input

shapes = st.integers(0, 9).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 3), min_size=size, max_size=size),
        st.tuples(*(st.integers(-1, node - 1) for node in range(size))),
    )
)
EVEN = torch.full((4,), 0.25)


def even(parents) -> dict[int, torch.Tensor]:
    return {parent: EVEN for parent in parents}


def ancestors(tree: DraftTree, node: int) -> set[int]:
    return {node} | (ancestors(tree, tree.parents[node]) if tree.parents[node] >= 0 else set())


def texts(tokens, parents) -> list[tuple[int, ...]]:
    """The text from the root to every node."""
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((found[parent] if parent >= 0 else ()) + (token,))
    return found


@given(shapes, st.integers(0, 9))
def test_a_tree_holds_every_text_once_as_deep_as_it_may_be(shape, depth):
    tokens, parents = shape
    tree = tree_of(tokens, parents, max_depth=depth)
    kept = {text for text in texts(tokens, parents) if len(text) <= depth}
    assert len(tree.tokens) == len(kept) and set(texts(tree.tokens, tree.parents)) == kept
    assert tree.depths == [len(text) for text in texts(tree.tokens, tree.parents)]
    assert tree.depth == max(tree.depths, default=0)


@given(shapes)
def test_a_node_is_found_by_parent_and_token_and_knows_its_path(shape):
    tree = tree_of(*shape)
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        assert tree.child(parent, token) == node and parent < node
        assert [tree.tokens[above] for above in tree.path(node)] == list(texts(tree.tokens, tree.parents)[node])
    assert tree.child(ROOT, 9) is None and tree.path(ROOT) == []
    assert tree.is_chain == (tree.parents == list(range(-1, len(tree.tokens) - 1)))


@given(shapes, st.integers(0, 9))
def test_of_the_children_of_a_node_the_last_ones_are_left_out(shape, most):
    """Whatever they are: with a smaller budget each parent has the beginning of what it has with a large one."""
    tokens, parents = shape
    whole, cut = (tree_of(tokens, parents, "iid", even(parents), max_nodes=limit) for limit in (99, most))
    assert len(cut.tokens) == min(most, len(whole.tokens)) and cut.tokens == whole.tokens[:most]
    for parent, children in cut.children.items():
        assert children.tokens == whole.children[parent].tokens[: len(children.tokens)]


def test_a_repeated_token_needs_room_for_a_node_of_its_own():
    """Else it would be kept for its value, where another one would have been left out."""
    for token in (5, 7):
        tree = tree_of([5, token], [-1, -1], "iid", even([-1]), max_nodes=1)
        assert tree.children[-1].tokens == tree.tokens == [5]
    tree = tree_of([5, 5, 5, 7, 7], [-1] * 5, "iid", even([-1]), max_nodes=2)
    assert tree.children[-1].tokens == [5, 5, 5, 7] and tree.tokens == [5, 7]


def test_equal_siblings_share_a_node_and_keep_order_and_multiplicity():
    tree = tree_of([1, 0, 1, 3, 3], [-1, -1, -1, 0, 2], "iid", even([-1, 0, 2]))
    assert (tree.tokens, tree.parents) == ([1, 0, 3], [-1, -1, 0])
    assert tree.children[-1].tokens == [1, 0, 1] and tree.children[0].tokens == [3, 3]
    assert all(children.mode == "iid" and children.q is EVEN for children in tree.children.values())


def test_a_choice_that_is_no_sampling_has_no_multiplicity():
    tree = tree_of([1, 1, 0], [-1, -1, 1], max_nodes=2)
    assert tree.tokens == tree.children[-1].tokens + tree.children[0].tokens == [1, 0]
    assert tree.add(ROOT, 1) == 0  # known: it takes no room


@given(shapes, st.integers(0, 5))
def test_where_branches_cannot_be_fed_the_first_children_alone_are_added(shape, most):
    """may_branch is asked with the tokens that would be fed; a chain asks nobody."""
    tokens, parents = shape
    tree = tree_of(tokens, parents, "iid", even(parents), may_branch=lambda count: count <= most)
    assert tree.is_chain or len(tree.tokens) <= most
    chain = tree_of(tokens, parents, "iid", even(parents), may_branch=lambda count: False)
    assert chain.is_chain and all(len(children.tokens) == 1 for children in chain.children.values())


def test_side_tokens_are_fed_together_or_not_at_all():
    side = SideTokens([1, 2], [1, 4], [[False, False], [True, False]])
    for budget in (dict(max_nodes=2), dict(max_offset=3), dict(may_branch=lambda count: count < 3)):
        tree = tree_of([7], [-1], **budget)
        assert not tree.add_side(side) and tree.count == 1
    tree = tree_of([7], [-1], max_nodes=3, max_offset=4)
    assert tree.add_side(side) and tree.count == 3 and tree.add(0, 8) is None


@given(shapes, st.integers(1, 3))
def test_each_node_sees_the_committed_text_and_exactly_its_ancestors(shape, uncomputed):
    tree = tree_of(*shape)
    model_input = make_input(list(range(uncomputed)), tree, cache_of(4))
    if model_input.mask is None:
        assert tree.is_chain
        return
    first = 4 + uncomputed
    for node in range(len(tree.tokens)):
        seen = set(model_input.mask[uncomputed + node].nonzero().flatten().tolist())
        assert seen == set(range(first)) | {first + a for a in ancestors(tree, node)}
        assert model_input.offsets[uncomputed + node] == uncomputed - 1 + len(ancestors(tree, node))


def test_side_tokens_see_what_they_declare_and_nothing_sees_them():
    tree = tree_of([7, 8], [-1, -1])
    tree.add_side(SideTokens([1, 2], [1, 5], [[False, False], [True, False]], sees_nodes=[[], [1]]))
    model_input = make_input([9], tree, cache_of(2))
    # entries: 2 cached, the root, two nodes, two side tokens
    assert model_input.mask.int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 1, 1, 1],
    ]
    assert model_input.offsets == [0, 1, 1, 1, 5]
    assert model_input.tokens == [9, 7, 8, 1, 2]
    assert model_input.wanted == 5


def test_a_chain_needs_no_mask():
    assert make_input([9], DraftTree.chain([1, 2, 3]), cache_of(2)).mask is None


@pytest.mark.parametrize("make, said", [
    (lambda: DraftTree().add(0, 1), "there is no node 0"),
    (lambda: DraftTree().add(-2, 1), "there is no node -2"),
    (lambda: DraftTree().add(ROOT, 1, "best"), "mode 'best' is unknown"),
    (lambda: DraftTree().add(ROOT, 1, "iid"), "mode 'iid' needs q"),
    (lambda: tree_of([1], [-1]).add(ROOT, 2, "iid", EVEN), "of one mode, not 'unsampled' and 'iid'"),
    (lambda: DraftTree().add_side(SideTokens([1], [1, 2], [[True]])), "side tokens need one offset"),
])  # fmt: skip
def test_what_is_no_tree_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def cache_of(length: int) -> ContiguousCache:
    cache = ContiguousCache(1, 1, 2, torch.float32)
    cache.append(0, torch.zeros(1, length, 2), torch.zeros(1, length, 2))
    return cache
