"""Reads and writes: what attention counts while it runs is what the formulas say, to the element."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.attention import Memory, naive, tiled
from lessons_lib.attention.traffic import held, naive_traffic, tiled_traffic

sizes, blocks = st.integers(1, 9), st.integers(1, 11)


def heads_of(H, H_kv, T, S):
    """q, keys and values that are only counted."""
    return [torch.zeros(H, T, 8), torch.zeros(H_kv, S, 8), torch.zeros(H_kv, S, 8)]


def counted(attend, *args, **options):
    memory = Memory()
    attend(*args, memory=memory, **options)
    return memory


@examples(60)
@given(T=sizes, S=sizes, block_q=blocks, block_k=blocks, causal=st.booleans(), H_kv=st.integers(1, 2))
def test_tiles_move_what_their_formula_says(T, S, block_q, block_k, causal, H_kv):
    found = counted(tiled, *heads_of(2 * H_kv, H_kv, T, S), block_q=block_q, block_k=block_k, causal=causal)
    assert found == tiled_traffic(T, S, 8, block_q, block_k, 2 * H_kv, causal)


@examples(60)
@given(T=sizes, S=sizes, causal=st.booleans())
def test_the_naive_form_moves_each_matrix_in_and_out(T, S, causal):
    assert counted(naive, *heads_of(1, 1, T, S), causal=causal) == naive_traffic(T, S, 8)


def test_a_case_worked_by_hand():
    # 4 queries, 4 keys, d = 2. Naive: q, k, v of 8 each and two 4 x 4 matrices, in and out
    assert naive_traffic(4, 4, 2) == Memory(8 + 8 + 8 + 16 + 16, 16 + 16 + 8)
    # blocks of 2: q once, k and v for each of two blocks of queries; out and logsumexp once
    assert tiled_traffic(4, 4, 2, 2, 2) == Memory(8 + 2 * 16, 8 + 4)
    # causal: the first block of queries needs only half of the keys
    assert tiled_traffic(4, 4, 2, 2, 2, causal=True) == Memory(8 + 8 + 16, 8 + 4)
    assert tiled_traffic(4, 4, 2, 2, 2).moved == 52 and tiled_traffic(4, 4, 2, 2, 2, H=3).moved == 156
    # 2 queries, 3 keys and values of d = 4 in 2 bytes; 6 scores and 2 outputs in 4
    assert held(2, 3, 4) == 2 * (8 + 12 + 12) + 4 * (6 + 8)


def test_the_causal_half_approaches_half_of_the_reads():
    whole, half = (tiled_traffic(4096, 4096, 64, 64, 64, causal=causal).read for causal in (False, True))
    assert half / whole == pytest.approx(0.5, abs=0.02)
