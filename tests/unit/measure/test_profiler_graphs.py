"""Counting graphs: one per shape, a break where it gives up, nothing carried over."""

import torch

from lessons_lib.measure.profiler import Graphs, count_graphs


def compiled(function):
    return torch.compile(function, backend="eager", dynamic=False)


def test_a_graph_serves_all_calls_of_one_shape_and_another_shape_needs_another():
    double = compiled(lambda x: 2 * x)
    assert count_graphs(lambda: [double(torch.ones(3)) for _ in range(4)]) == Graphs(1, 0)
    assert count_graphs(lambda: [double(torch.ones(n)) for n in (3, 4, 3)]) == Graphs(2, 0)


def test_a_call_that_cannot_be_captured_breaks_the_graph():
    def printing(x):
        y = 2 * x
        torch._dynamo.graph_break()
        return y + 1

    assert count_graphs(lambda: compiled(printing)(torch.ones(3))) == Graphs(2, 1)


def test_without_compilation_nothing_is_counted():
    assert count_graphs(lambda: torch.ones(3) * 2) == Graphs(0, 0)
