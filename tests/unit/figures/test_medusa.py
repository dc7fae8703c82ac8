"""Lesson 09's figures: every node and edge of the tree, its mask, and lines that are those of the rows."""

import pytest
from matplotlib.colors import to_hex
from support.heads import SIX
from support.lines import points

from lessons_lib.decoding.draft_tree import ANCHOR
from lessons_lib.decoding.proposers.medusa import TreeShape, regular
from lessons_lib.figures.medusa import (
    layout,
    plot_head_accuracies,
    plot_heads_training,
    plot_tree,
    plot_tree_and_mask,
    plot_tree_sizes,
)
from lessons_lib.figures.style import COLORS, INK

SHAPE = TreeShape.of(SIX)
PLACES = {ANCHOR: (0, 1.25), 0: (1, 0.5), 1: (1, 2), 2: (2, 0), 3: (2, 1), 4: (2, 2), 5: (3, 0)}
SIZES = [
    {"nodes": 4, "expected": 2.2, "counted": 2.0, "speed_predicted": 1.4, "speed_counted": 1.2, "samples": [1, 3, 2]},
    {"nodes": 1, "expected": 1.6, "counted": 1.5, "speed_predicted": 1.3, "speed_counted": 1.25},
    {"nodes": 8, "expected": 2.4, "speed_predicted": 1.1},
]


def shades(collection):
    return [to_hex(color).upper() for color in collection.get_edgecolor()]


def test_leaves_have_a_row_each_and_parents_stand_between_their_children():
    assert layout(SHAPE) == PLACES and list(layout(SHAPE)) == [ANCHOR, *range(6)]
    assert layout(TreeShape.of([])) == {ANCHOR: (0, 0)}


def test_nodes_edges_and_ranks_are_those_of_the_tree():
    ax = plot_tree(SHAPE)
    edges, nodes = ax.collections
    assert nodes.get_offsets().tolist() == [list(place) for place in PLACES.values()]
    ends = [[PLACES[parent], PLACES[node]] for node, parent in enumerate(SHAPE.parents)]
    assert [[tuple(end) for end in edge] for edge in edges.get_segments()] == ends
    written = {text.get_position(): text.get_text() for text in ax.texts}
    names = ["anchor", "0", "1", "0,0", "0,1", "1,0", "0,0,0"]
    assert written == dict(zip(PLACES.values(), names, strict=True))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["anchor", "head 1", "head 2", "head 3"]
    assert ax.get_ylim() == (2.5, -0.5)  # the first favourites on top


def test_the_anchor_stands_out_from_the_guesses():
    edges, nodes = plot_tree(SHAPE).collections
    assert shades(edges) == [COLORS["medusa"].upper()] * 6 and shades(nodes) == [INK.upper(), *shades(edges)]


def test_a_large_tree_is_drawn_without_labels_and_one_of_40_nodes_with_them():
    assert len(plot_tree(regular(40)).texts) == 41 and not plot_tree(regular(41)).texts
    assert len(plot_tree(regular(41)).collections[1].get_offsets()) == 42


def test_the_mask_beside_the_tree_marks_who_is_looked_at():
    tree, mask = plot_tree_and_mask(SHAPE).axes
    assert len(tree.texts) == 7
    assert mask.images[0].get_array().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0, 0],
        [1, 0, 2, 0, 0, 0, 0],
        [1, 2, 0, 2, 0, 0, 0],
        [1, 2, 0, 0, 2, 0, 0],
        [1, 0, 2, 0, 0, 2, 0],
        [1, 2, 0, 2, 0, 0, 2],
    ]
    assert [label.get_text() for label in mask.get_xticklabels()][:4] == ["anchor", "0", "1", "0,0"]
    assert [label.get_text() for label in mask.get_yticklabels()][2:4] == ["1  +1", "0,0  +2"]


def test_a_tree_without_nodes_is_its_anchor():
    tree, mask = plot_tree_and_mask(TreeShape.of([])).axes
    assert [text.get_text() for text in tree.texts] == ["anchor"] and mask.images[0].get_array().tolist() == [[1]]
    assert [text.get_text() for text in mask.get_legend().get_texts()] == ["anchor", "guess"]


def test_a_training_shows_the_loss_of_both_texts_and_how_often_each_head_is_right():
    curve = [{"step": step, "loss": 9 - step} for step in (1, 2, 3, 4)]
    curve[1] |= {"held_loss": 8, "top1": [0.5, 0.2], "top5": [0.7, 0.4]}
    curve[3] |= {"held_loss": 6, "top1": [0.6, 0.3], "top5": [0.8, 0.45]}
    left, right = plot_heads_training(curve).axes
    batches, held = left.get_lines()
    assert points(batches) == [(1, 8), (2, 7), (3, 6), (4, 5)] and points(held) == [(2, 8), (4, 6)]
    first, second, first_five, second_five = right.get_lines()
    assert points(first) == [(2, 0.5), (4, 0.6)] and points(second) == [(2, 0.2), (4, 0.3)]
    assert points(first_five) == [(2, 0.7), (4, 0.8)] and points(second_five) == [(2, 0.4), (4, 0.45)]
    assert [line.get_linestyle() for line in right.get_lines()] == ["-", "-", "--", "--"]
    assert first.get_color() == first_five.get_color() != second.get_color() == second_five.get_color()
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["head 1", "head 2"]


def test_a_training_that_was_not_looked_at_yet_has_its_loss_alone():
    left, right = plot_heads_training([{"step": 1, "loss": 9}]).axes
    assert points(left.get_lines()[0]) == [(1, 9)] and not right.get_lines()


def test_accuracies_add_up_over_a_heads_favourites():
    one, two = plot_head_accuracies([[0.5, 0.25, 0.125], [0.25, 0.125]]).get_lines()
    assert points(one) == [(1, 0.5), (2, 0.75), (3, 0.875)] and points(two) == [(1, 0.25), (2, 0.375)]
    assert [one.get_label(), two.get_label()] == ["head 1", "head 2"]


def test_sizes_have_what_was_predicted_and_counted_and_what_was_timed():
    left, right = plot_tree_sizes(SIZES).axes
    predicted, counted = left.get_lines()
    assert points(predicted) == [(1, 1.6), (4, 2.2), (8, 2.4)] and points(counted) == [(1, 1.5), (4, 2.0)]
    assert predicted.get_linestyle() == "--" and counted.get_linestyle() == "-"
    predicted, best, counted, best_counted, measured, *_ = right.get_lines()
    assert points(predicted) == [(1, 1.3), (4, 1.4), (8, 1.1)] and points(counted) == [(1, 1.25), (4, 1.2)]
    assert points(best) == [(4, 1.4)] and points(best_counted) == [(1, 1.25)]
    assert [best.get_label(), best_counted.get_label()] == ["best: 4 nodes", "best: 1 nodes"]
    assert points(measured) == [(4, 2)]


def test_sizes_that_were_only_predicted_are_drawn_too_and_none_is_refused():
    left, right = plot_tree_sizes([{"nodes": 3, "expected": 2.0, "speed_predicted": 1.2}]).axes
    assert len(left.get_lines()) == 1 and len(right.get_lines()) == 3  # the line, its best and the level of plain
    with pytest.raises(ValueError, match="at least one row"):
        plot_tree_sizes([])
