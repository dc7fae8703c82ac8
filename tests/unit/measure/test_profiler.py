"""The profiler: peak memory, and how many graphs are compiled."""

import gc

import pytest
import torch
import torch.nn.functional as F

from lessons_lib.attention import naive, tiled
from lessons_lib.measure.profiler import (
    Graphs,
    count_graphs,
    gc_frozen,
    peak_bytes,
)


def one_after_another():
    for _ in range(3):
        torch.zeros(1 << 18)


def at_once():
    return [torch.zeros(1 << 18) for _ in range(3)]


def test_tensors_that_live_at_once_add_up_and_others_do_not():
    assert peak_bytes(one_after_another) == pytest.approx(2**20, rel=0.01)
    assert peak_bytes(at_once) == pytest.approx(3 * 2**20, rel=0.01)


def test_what_was_there_before_does_not_count():
    kept = torch.zeros(1 << 20)
    assert peak_bytes(lambda: kept[: 1 << 10] + 1) < 2**14


def peaks(attend):
    given_ = {S: torch.randn(2, S, 16) for S in (128, 256, 512)}
    return [peak_bytes(lambda x=x: attend(x, x, x)) for x in given_.values()]


def test_naive_attention_grows_with_the_square_and_tiles_in_a_line():
    a, b, c = peaks(naive)
    assert (c - b) / (b - a) == pytest.approx(4, rel=0.02) and c >= 2 * 2 * 512 * 512 * 4
    a, b, c = peaks(tiled)
    assert (c - b) / (b - a) == pytest.approx(2, rel=0.1)


def test_a_kernels_own_memory_is_seen():
    x = torch.randn(1, 2, 256, 16)
    assert peak_bytes(lambda: F.scaled_dot_product_attention(x, x, x)) >= x.nbytes


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="not on mps"):
        peak_bytes(lambda: None, "mps")


def test_what_exists_is_spared_the_collector_for_a_while_whatever_happens():
    with pytest.raises(KeyError), gc_frozen():
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_freeze_count() == 0


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
