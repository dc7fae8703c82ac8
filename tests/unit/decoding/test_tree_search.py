"""The search finds the best tree of every size, and as many nodes as the machine's width curve pays for."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.decoding.proposers.tree_shape import TreeShape, best_size, best_tree, by_value, regular, speed_by_size

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
    """Also where a head's second favourite is right more often than its first."""
    best = max(tree.expected_tokens(accuracies) for tree in every_tree(accuracies, nodes))
    found = best_tree(accuracies, nodes)
    assert len(found.choices) == nodes and found.expected_tokens(accuracies) == pytest.approx(best)


def test_choices_that_are_never_right_are_left_out():
    assert best_tree([[0.5, 0.0], [0.0, 0.0]], 10).choices == ((0,),)


def test_the_size_is_where_tokens_over_cost_is_highest():
    speeds = speed_by_size(BY_HAND, v=lambda width: 1 + 0.1 * (width - 1), most=4)
    assert speeds == pytest.approx([1, 1.6 / 1.1, 1.9 / 1.2, 2.1 / 1.3, 2.22 / 1.4])
    assert best_size(BY_HAND, v=lambda width: 1 + 0.1 * (width - 1), most=4) == 3
    assert best_size(BY_HAND, v={1: 1.0, 2: 1.0, 3: 2.0}, most=4) == 1
    assert best_size(BY_HAND, v=lambda width: 1 + 0.1 * (width - 1), sizes=[5, 1, 2, 99]) == 2
    assert best_size(BY_HAND, v=lambda width: float(width), sizes=[2, 1]) == 1 and best_size(BY_HAND, sizes=[99]) == 0
    assert best_size(BY_HAND, most=4) == 4 and len(speed_by_size(BY_HAND, most=100)) == 1 + 3 + 3 * 2


def test_where_width_or_heads_cost_too_much_plain_decoding_stays():
    assert best_size(BY_HAND, v=lambda width: float(width)) == 0
    assert best_size(BY_HAND, heads_share=0.5) > 0 == best_size(BY_HAND, heads_share=2.0)
