"""Tree shapes: laid out as by hand, nodes attend to their ancestors, the search finds the best tree of a size."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.heads import SIX
from support.oracle import exact
from support.proposers import tree_of
from support.targets import targets

from lessons_lib.decoding.draft_tree import ROOT, make_input, plain_input
from lessons_lib.decoding.proposers.tree_shape import (
    TreeShape,
    ancestors,
    best_size,
    best_tree,
    by_value,
    regular,
    speed_by_size,
)
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


def test_a_small_tree_and_its_mask_are_those_worked_out_by_hand():
    shape = TreeShape.of(reversed(SIX))
    assert shape.choices == tuple(SIX)
    assert shape.parents == [ROOT, ROOT, 0, 0, 1, 2] and shape.depths == [1, 1, 2, 2, 2, 3]
    assert shape.leaves == [3, 4, 5]
    assert ancestors(shape).int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 1],
    ]


@given(shapes())
def test_each_node_attends_to_exactly_its_ancestors(shape):
    mask = ancestors(shape)
    for node, choice in enumerate(shape.choices, 1):
        beginnings = {choice[:length] for length in range(len(choice) + 1)}
        expected = {0, *(other for other, c in enumerate(shape.choices, 1) if c in beginnings)}
        assert set(mask[node].nonzero().flatten().tolist()) == expected
        assert shape.depths[node - 1] == len(choice) == len(expected) - 1
    assert mask[:, 0].all() and mask[0].sum() == 1


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
            (alone,) = target.run([plain_input(text + path, target.new_cache(40))])
            torch.testing.assert_close(scores.logits[1 + node], alone.logits[0], rtol=0, atol=1e-10)


def test_regular_trees_hold_every_combination():
    assert regular(2, 1).choices == ((0,), (1,), (0, 0), (1, 0))
    assert len(regular(3, 2, 2).choices) == 3 + 6 + 12 and regular(3, 2, 2).ranks == 3
    assert regular().choices == () and regular().depth == regular().ranks == 0


@pytest.mark.parametrize("choices, said", [
    ([(0,), (1, 0)], r"has \(1, 0\) but not \(1,\)"),
    ([()], r"\(\) is no choice"),
    ([(0,), (0, -1)], r"\(0, -1\) is no choice"),
])  # fmt: skip
def test_what_is_no_tree_is_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        TreeShape.of(choices)


BY_HAND = [[0.6, 0.2, 0.1], [0.5, 0.2]]


def test_the_order_and_worth_of_choices_are_those_worked_out_by_hand():
    first = [next_choice for next_choice, _ in zip(by_value(BY_HAND), range(4), strict=False)]
    assert [choice for choice, _ in first] == [(0,), (0, 0), (1,), (0, 1)]
    assert [value for _, value in first] == pytest.approx([0.6, 0.3, 0.2, 0.12])
    assert best_tree(BY_HAND, 4).expected_tokens(BY_HAND) == pytest.approx(1 + 1.22)
    assert regular(2, 1).expected_tokens(BY_HAND) == pytest.approx(1 + 1.20)


def every_tree(accuracies, nodes: int):
    """All trees of so many nodes."""
    choices = [choice for depth in range(1, len(accuracies) + 1)
               for choice in product(*(range(len(row)) for row in accuracies[:depth]))]  # fmt: skip
    for chosen in combinations(choices, nodes):
        try:
            yield TreeShape.of(chosen)
        except ValueError:
            continue


ACCURACIES = st.lists(st.integers(1, 9).map(lambda x: x / 10), min_size=2, max_size=2)


@examples(60)
@given(accuracies=st.lists(ACCURACIES, min_size=2, max_size=3), nodes=st.integers(1, 4))
def test_no_other_tree_of_its_size_promises_more(accuracies, nodes):
    """Also where a head's second token is right more often than its first."""
    best = max(tree.expected_tokens(accuracies) for tree in every_tree(accuracies, nodes))
    found = best_tree(accuracies, nodes)
    assert len(found.choices) == nodes and found.expected_tokens(accuracies) == pytest.approx(best)


def test_choices_that_are_never_right_are_left_out():
    assert best_tree([[0.5, 0.0], [0.0, 0.0]], 10).choices == ((0,),)


def test_the_size_is_where_tokens_over_cost_is_highest():
    speeds = speed_by_size(BY_HAND, v=lambda width: 1 + 0.1 * (width - 1), most=4)
    assert speeds == pytest.approx([1, 1.6 / 1.1, 1.9 / 1.2, 2.1 / 1.3, 2.22 / 1.4])
    assert best_size(BY_HAND, v=lambda width: 1 + 0.1 * (width - 1)) == 3
    assert best_size(BY_HAND, v={1: 1.0, 2: 1.0, 3: 2.0}) == 1
    assert best_size(BY_HAND, v=lambda width: 1 + 0.1 * (width - 1), sizes=[5, 1, 2, 99]) == 2
    assert best_size(BY_HAND, v=lambda width: float(width), sizes=[2, 1]) == 1
    assert best_size(BY_HAND) == 3 + 3 * 2 and len(speed_by_size(BY_HAND, most=100)) == 1 + 3 + 3 * 2
    assert best_size(BY_HAND, sizes=[99]) == best_size(BY_HAND, sizes=[]) == 0
    assert best_size([[0.6, 0.2, 0.1, 0.05]] * 4, sizes=[63, 127]) == 127
    # where width or heads cost too much, plain decoding stays
    assert best_size(BY_HAND, v=lambda width: float(width)) == 0
    assert best_size(BY_HAND, heads_share=0.5) > 0 == best_size(BY_HAND, heads_share=2.0)
