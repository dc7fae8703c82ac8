"""Peak memory: what lived at once, not what was taken altogether; and memory that goes back to the system."""

import gc
import platform
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lessons_lib.attention import naive, tiled
from lessons_lib.measure.profiler import bytes_left, gc_frozen, highest, peak_bytes, trim_heap


def test_the_highest_sum_of_changes():
    assert highest([4, 8, -4, 2]) == 12
    assert highest([]) == 0 and highest([-5]) == 0


def one_after_another():
    for _ in range(3):
        torch.zeros(1 << 18)


def at_once():
    return [torch.zeros(1 << 18) for _ in range(3)]


def test_tensors_that_live_at_once_add_up_and_others_do_not():
    assert peak_bytes(one_after_another) == pytest.approx(2**20, rel=0.01)
    assert peak_bytes(at_once) == pytest.approx(3 * 2**20, rel=0.01)


def test_what_is_given_back_does_not_stay():
    assert bytes_left(one_after_another) == 0
    assert bytes_left(lambda: at_once()[0]) == pytest.approx(2**20, rel=0.01)
    assert bytes_left(at_once) == pytest.approx(3 * 2**20, rel=0.01)


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


def test_naive_causal_attention_holds_two_matrices_and_a_mask():
    x, pairs = torch.randn(3, 256, 16), 256 * 256
    assert peak_bytes(lambda: naive(x, x, x, causal=True)) == pytest.approx((2 * 3 * 4 + 1) * pairs, rel=0.03)


def test_a_kernels_own_memory_is_seen():
    x = torch.randn(1, 2, 256, 16)
    assert peak_bytes(lambda: F.scaled_dot_product_attention(x, x, x)) >= x.nbytes


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="not on mps"):
        peak_bytes(lambda: None, "mps")
    with pytest.raises(ValueError, match="not on mps"):
        bytes_left(lambda: None, "mps")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed pieces, and can give them back")
def test_freed_pieces_below_one_that_lives_go_back_to_the_system():
    pieces = [torch.ones(1 << 14) for _ in range(1600)]
    living = torch.ones(1 << 14)
    del pieces
    kept = resident()
    trim_heap()
    assert resident() < kept - 50e6 and living.sum() == 1 << 14


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_where_the_c_library_gives_nothing_back_nothing_happens(error, monkeypatch):
    def missing(name):
        raise error("no such call")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert trim_heap() is None


def test_what_exists_is_spared_the_collector_for_a_while_whatever_happens():
    with pytest.raises(KeyError), gc_frozen():
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_a_program_has_frozen_itself_stays_frozen():
    gc.freeze()
    try:
        with gc_frozen():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
