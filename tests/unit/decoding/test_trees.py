"""Trees of choices: laid out as by hand, and for any tree each node attends to exactly its ancestors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.heads import SIX
from support.oracle import exact
from support.proposers import tree_of
from support.targets import targets

from lessons_lib.decoding.draft_tree import ROOT, make_input, plain_input, tree_mask
from lessons_lib.decoding.proposers.tree_shape import PAD, TreeShape, buffers, published_tree, regular
from lessons_lib.decoding.sampling import Greedy, Typical
from lessons_lib.models import tiny


@st.composite
def shapes(draw):
    """Any tree of up to 20 nodes: every new choice goes below one that is there, or below the root."""
    choices = []
    for _ in range(draw(st.integers(1, 20))):
        below = draw(st.sampled_from([(), *choices]))
        choice = (*below, draw(st.integers(0, 9)))
        if choice not in choices and len(choice) < 6:
            choices.append(choice)
    return TreeShape.of(draw(st.permutations(choices)))


def test_the_buffers_of_a_small_tree_are_those_worked_out_by_hand():
    shape = TreeShape.of(reversed(SIX))
    assert shape.choices == tuple(SIX)
    assert shape.parents == [ROOT, ROOT, 0, 0, 1, 2] and shape.depths == [1, 1, 2, 2, 2, 3]
    found = buffers(shape)
    assert found.positions.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert found.index.tolist() == [0, 1, 2, 11, 12, 11, 21]
    assert found.retrieve.tolist() == [[0, 1, 3, 6], [0, 2, 5, PAD], [0, 1, 4, PAD]]
    assert found.mask.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 1],
    ]


def test_a_list_of_favourites_as_short_as_the_tree_allows_moves_the_index():
    assert buffers(TreeShape.of(SIX), top_k=2).index.tolist() == [0, 1, 2, 3, 4, 3, 5]
    with pytest.raises(ValueError, match="asks for a head's 2 most likely tokens, but top_k is 1"):
        buffers(TreeShape.of(SIX), top_k=1)


@given(shapes())
def test_each_node_attends_to_exactly_its_ancestors(shape):
    found = buffers(shape)
    for node, choice in enumerate(shape.choices, 1):
        beginnings = {choice[:length] for length in range(len(choice) + 1)}
        expected = {0, *(other for other, c in enumerate(shape.choices, 1) if c in beginnings)}
        assert set(found.mask[node].nonzero().flatten().tolist()) == expected
        assert found.positions[node] == len(choice) == len(expected) - 1
    assert found.mask[:, 0].all() and found.mask[0].sum() == 1


@given(shapes())
def test_the_mask_is_the_one_that_the_loop_feeds(shape):
    tree = tree_of(range(len(shape.choices)), shape.parents)
    assert torch.equal(buffers(shape).mask, tree_mask(1, tree, 0))
    assert buffers(shape).positions.tolist() == [0, *tree.depths]


@given(shapes())
def test_every_leaf_has_one_row_from_the_root_down(shape):
    rows = buffers(shape).retrieve.tolist()
    paths = [[node for node in row if node != PAD] for row in rows]
    assert all(len(row) == 1 + shape.depth and row[: len(path)] == path for row, path in zip(rows, paths, strict=True))
    assert [path[-1] - 1 for path in paths] == shape.leaves[::-1]
    for path in paths:
        assert [() if node == 0 else shape.choices[node - 1] for node in path] == [
            shape.choices[path[-1] - 1][:length] for length in range(len(path))
        ]


@given(shapes())
def test_children_stand_below_their_parents_which_come_first(shape):
    assert sorted(node for below in shape.children.values() for node in below) == list(range(len(shape.choices)))
    assert all(shape.parents[node] == parent for parent, below in shape.children.items() for node in below)
    assert list(shape.children) == sorted(shape.children) and list(shape.children)[0] == ROOT


@examples(12)
@given(shape=shapes(), seed=st.integers(0, 99))
@targets
def test_a_nodes_scores_are_those_of_the_text_along_its_path(target, shape, seed):
    random = torch.Generator().manual_seed(seed)
    target, text = target(tiny()), [5, 80, 3, 61]
    tokens = torch.randint(0, 97, (len(shape.choices),), generator=random).tolist()
    tree = tree_of(tokens, shape.parents)
    with exact(), torch.no_grad():
        (scores,) = target.run([make_input(text, tree, target.new_cache(40))])
        for node in range(len(tree.tokens)):
            path = [tree.tokens[above] for above in tree.path(node)]
            block = plain_input(text + path, target.new_cache(40))
            torch.testing.assert_close(scores.logits[1 + node], target.run([block])[0].logits[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", [Greedy(), Typical()])
def test_token_0_behind_a_leaf_is_not_taken_for_a_guess(rule):
    """The pad of a shorter path must never be accepted: choices 0, 1, 00; the model wants the second, then token 0."""
    tree = tree_of([3, 5, 7], TreeShape.of([(0,), (1,), (0, 0)]).parents)
    logits = torch.full((4, 9), -50.0)
    logits[0, 5] = logits[2, 0] = logits[1, 0] = logits[3, 0] = 50.0
    assert rule.accept(tree, logits) == ([1], 0)


def test_regular_trees_hold_every_combination():
    assert regular(2, 1).choices == ((0,), (1,), (0, 0), (1, 0))
    assert len(regular(3, 2, 2).choices) == 3 + 6 + 12 and regular(3, 2, 2).ranks == 3
    assert regular().choices == () and regular().depth == regular().ranks == 0


def test_the_published_tree_has_the_nodes_that_its_authors_count():
    """As in their code: 64 rows, of which 10, 28, 23 and 2 on the four levels below the root, and 42 leaves."""
    shape = published_tree()
    assert [shape.depths.count(depth) for depth in range(1, 6)] == [10, 28, 23, 2, 0]
    found = buffers(shape)
    assert found.mask.shape == (64, 64) and found.retrieve.shape == (42, 5) and shape.ranks == 10
    assert {(0, 9), (1, 6), (2, 2), (3, 1), (9, 0), (0, 0, 9), (0, 7, 0), (1, 0, 1), (0, 0, 0, 1)} <= set(shape.choices)


@pytest.mark.parametrize("choices, said", [
    ([(0,), (1, 0)], r"has \(1, 0\) but not \(1,\)"),
    ([()], r"\(\) is no choice"),
    ([(0,), (0, -1)], r"\(0, -1\) is no choice"),
])  # fmt: skip
def test_what_is_no_tree_is_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        TreeShape.of(choices)


def test_a_choice_below_one_that_is_missing_is_refused():
    with pytest.raises(ValueError, match=r"the tree has \(0, 0, 0\) but not \(0, 0\); add every beginning of a choice"):
        TreeShape.of([(0,), (0, 0, 0)])
