"""Reads and writes: what attention counts while it runs is what the formulas say, to the element."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.attention import Memory, keys_outside, naive, split_kv, tiled
from lessons_lib.attention.traffic import (
    block_sizes,
    held,
    keys_outside_traffic,
    naive_traffic,
    order_of,
    split_traffic,
    tiled_traffic,
)

sizes, blocks = st.integers(1, 9), st.integers(1, 11)


def counted(attend, *args, **options):
    memory = Memory()
    attend(*args, memory=memory, **options)
    return memory


@examples(60)
@given(T=sizes, S=sizes, block_q=blocks, block_k=blocks, causal=st.booleans(), H_kv=st.integers(1, 2))
def test_both_orders_move_what_their_formula_says(heads_of, T, S, block_q, block_k, causal, H_kv):
    given_ = heads_of(2 * H_kv, H_kv, T, S)
    for attend, formula in ((tiled, tiled_traffic), (keys_outside, keys_outside_traffic)):
        found = counted(attend, *given_, block_q=block_q, block_k=block_k, causal=causal)
        assert found == formula(T, S, 8, block_q, block_k, 2 * H_kv, causal)


@examples(60)
@given(T=sizes, S=sizes, causal=st.booleans())
def test_the_naive_form_moves_each_matrix_in_and_out(heads_of, T, S, causal):
    assert counted(naive, *heads_of(3, 1, T, S), causal=causal) == naive_traffic(T, S, 8, 3)


@examples(60)
@given(T=sizes, S=sizes, splits=sizes)
def test_split_keys_move_what_their_formula_says(heads_of, T, S, splits):
    found = counted(split_kv, *heads_of(2, 1, T, S), splits=splits, block_k=2)  # the keys pass by the queries once
    assert found == split_traffic(T, S, 8, splits, 2)


def test_a_case_worked_by_hand():
    # 4 queries, 4 keys, d = 2. Naive: q, k, v of 8 each and two 4 x 4 matrices, in and out
    assert naive_traffic(4, 4, 2) == Memory(8 + 8 + 8 + 16 + 16, 16 + 16 + 8)
    # blocks of 2: q once, k and v for each of two blocks of queries; out and logsumexp once
    assert tiled_traffic(4, 4, 2, 2, 2) == Memory(8 + 2 * 16, 8 + 4)
    # causal: the first block of queries needs only half of the keys
    assert tiled_traffic(4, 4, 2, 2, 2, causal=True) == Memory(8 + 8 + 16, 8 + 4)
    # keys outside: k and v once; q, out, m, l of all queries in, and out, m, l out again, for each of two blocks
    assert keys_outside_traffic(4, 4, 2, 2, 2) == Memory(16 + 2 * (8 + 8 + 4 + 4), 2 * (8 + 4 + 4))
    assert keys_outside_traffic(4, 4, 2, 2, 2, causal=True) == Memory(16 + 24 + 12, 16 + 8)
    # one query over 8 keys, split in two: q twice, k and v once, both results out, in, and one out
    assert split_traffic(1, 8, 2, 2) == Memory(2 * 2 + 32 + 2 * 3, 3 * 3)
    assert tiled_traffic(4, 4, 2, 2, 2).moved == 52 and tiled_traffic(4, 4, 2, 2, 2, H=3).moved == 156


def test_the_causal_half_approaches_half_of_the_reads():
    whole, half = (tiled_traffic(4096, 4096, 64, 64, 64, causal=causal).read for causal in (False, True))
    assert half / whole == pytest.approx(0.5, abs=0.02)


def test_the_papers_blocks_fill_its_fast_memory_and_leave_no_room_for_scores():
    assert block_sizes(25_600, 64) == (64, 100)  # about 100 kB of fp32
    assert block_sizes(1_000, 64) == (4, 4) and block_sizes(1_024, 64) == (4, 4) and block_sizes(1_025, 64) == (5, 5)
    for M in (1_024, 10_240, 102_400):  # whole blocks
        block_q, block_k = block_sizes(M, 64)
        assert held(block_q, block_k, 64) - block_q * block_k <= M
    assert held(*block_sizes(10_240, 64), 64) > 10_240
    assert held(2, 3, 4) == 16 + 24 + 6


def test_traffic_grows_as_the_paper_says():
    def moved(T, M):
        return keys_outside_traffic(T, T, 64, *block_sizes(M, 64)).moved

    assert moved(8192, 25_600) / moved(4096, 25_600) == pytest.approx(4, rel=0.05)
    assert moved(8192, 25_600) / moved(8192, 102_400) == pytest.approx(4, rel=0.05)
    assert order_of(3, 5, 4, 16) == 15
    assert order_of(8192, 8192, 64, 25_600) / order_of(4096, 4096, 64, 102_400) == 16


@pytest.mark.parametrize("formula", [tiled_traffic, keys_outside_traffic])
def test_blocks_of_no_size_are_refused(formula):
    with pytest.raises(ValueError, match="block_k=0"):
        formula(4, 4, 2, 2, 0)
    with pytest.raises(ValueError, match="M=0"):
        block_sizes(0, 64)
    with pytest.raises(ValueError, match="splits=0"):
        split_traffic(1, 4, 2, 0)
