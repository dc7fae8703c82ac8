"""Checkers: what a head is trained on, the tree's mask, the tree to try, and typical acceptance."""

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.decoding.proposers.tree_shape import TreeShape, ancestors, best_tree


@exercise("09.1")
def shifted(attempt):
    """Every (t, ids[t + k + 1]) that exists; k = 0 is the model's own head."""
    expect(attempt, [5, 6, 7, 8], 1, equals=[(0, 7), (1, 8)])
    expect(attempt, [5, 6, 7, 8], 0, equals=[(0, 6), (1, 7), (2, 8)])
    expect(attempt, [9, 4, 4, 1, 3], 3, equals=[(0, 3)])
    expect(attempt, [5, 6, 7, 8], 3, equals=[])
    expect(attempt, [5, 6], 4, equals=[])


@exercise("09.2")
def tree_mask(attempt):
    """(1 + n, 1 + n) bool, the root first, then the choices by length and rank: each sees its beginnings."""
    for choices in [
        [(0,), (1,), (0, 0)],
        [(0, 0, 0), (1, 0), (0,), (0, 1), (1,), (0, 0)],
        [(2, 1), (2,), (0,), (2, 1, 0), (0, 3), (2, 1, 5)],
        [],
    ]:
        expect(attempt, choices, equals=ancestors(TreeShape.of(choices)))


@exercise("09.3")
def best_choices(attempt):
    """The choices with the highest products; no two of these products are equal."""
    by_hand, rising = [[0.6, 0.2, 0.1], [0.5, 0.2]], [[0.3, 0.4], [0.9, 0.05]]
    expect(attempt, by_hand, 4, equals=[(0,), (0, 0), (0, 1), (1,)])
    expect(attempt, rising, 2, equals=[(1,), (1, 0)])
    accuracies = [[0.53, 0.17, 0.08, 0.05], [0.31, 0.13, 0.07], [0.23, 0.11]]
    for nodes in (1, 6, 12):
        expect(attempt, accuracies, nodes, equals=sorted(best_tree(accuracies, nodes).choices))


@exercise("09.4")
def typical(attempt):
    """The tokens of probability above min(epsilon, delta exp(-H)), H in nats."""
    expect(attempt, [0.97, 0.01, 0.01, 0.01], 0.09, 0.3, equals=[0])
    expect(attempt, [0.08, 0.35, 0.12, 0.45], 0.09, 0.3, equals=[1, 2, 3])
    expect(attempt, [0.02] * 50, 0.09, 0.3, equals=list(range(50)))
    expect(attempt, [0.5, 0.0, 0.5], 0.09, 0.3, equals=[0, 2])
    expect(attempt, [0.5, 0.3, 0.15, 0.05], 0.2, 0.5, equals=[0, 1])
