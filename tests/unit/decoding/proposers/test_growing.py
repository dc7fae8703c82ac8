"""A tree of guesses in the making, by hand."""

from lessons_lib.decoding.draft_tree import Growing, Proposal, Tree


def test_equal_siblings_are_one_node_and_draws_keep_what_was_drawn():
    tree = Growing()
    tree.grow({-1: [5, 7, 5]})
    assert (tree.tokens, tree.parents, tree.level, tree.depth) == ([5, 7], [-1, -1], [0, 1], 1)
    tree.grow({0: [7], 1: [7, 7]})
    assert (tree.tokens, tree.parents, tree.level, tree.depth) == ([5, 7, 7, 7], [-1, -1, 0, 1], [2, 3], 2)
    assert tree.draws == {-1: [5, 7, 5], 0: [7], 1: [7, 7]}


def test_the_loop_finds_nothing_to_merge_in_it():
    tree = Growing()
    for drawn in ({-1: [5, 7, 5]}, {0: [7, 5], 1: [7, 7]}):
        tree.grow(drawn)
    made = Tree.of(Proposal(tree.tokens, tree.parents, draws=tree.draws), limit=2)
    assert (made.tokens, made.parents, made.depths) == (tree.tokens, tree.parents, [1, 1, 2, 2, 2])
    assert made.draws == tree.draws
