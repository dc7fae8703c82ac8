"""Softmax over pieces: the case worked by hand, merging in any order, and keys divided among workers."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.attention import Partial, merge_outputs, naive, split_kv, tiled

EXACT = dict(rtol=0, atol=1e-12)


def row(*numbers):
    return torch.tensor([numbers], dtype=torch.float64)


def column(*numbers):
    return row(*numbers).mT


def numbers(state):
    return [x.item() for x in (state.m, state.l, state.o)]


def test_the_case_worked_by_hand():
    first, second = Partial.of(row(1, 2), column(10, 20)), Partial.of(row(3), column(30))
    assert numbers(first) == pytest.approx([2, 1.367879, 23.678794], abs=1e-6)
    both = first.merge(second)
    assert numbers(both) == pytest.approx([3, 1.503215, 38.710941], abs=1e-6)
    assert both.output().item() == pytest.approx((10 + 20 * math.e + 30 * math.e**2) / (1 + math.e + math.e**2))
    assert both.logsumexp().item() == pytest.approx(math.log(math.e + math.e**2 + math.e**3), abs=1e-12)


def test_no_keys_and_hidden_keys_leave_a_state_untouched():
    state = Partial.of(row(1, 2), column(10, 20))
    nothing = Partial.empty(row(0.0), 1)
    hidden = Partial.of(row(-math.inf, -math.inf), column(7, 7))
    for other in (nothing, hidden):
        assert numbers(state.merge(other)) == numbers(other.merge(state)) == numbers(state)
        assert numbers(other) == [-math.inf, 0, 0] and other.output().item() == 0
        assert other.logsumexp().item() == -math.inf


@examples(60)
@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(-9, 9)), min_size=1, max_size=6), st.randoms())
def test_pieces_merge_in_any_order_and_grouping(pairs, random):
    scores, values = row(*(s for s, _ in pairs)), column(*(v for _, v in pairs))
    pieces = [Partial.of(scores[:, i : i + 1], values[i : i + 1]) for i in range(len(pairs))]
    while len(pieces) > 1:
        random.shuffle(pieces)
        pieces.append(pieces.pop().merge(pieces.pop()))
    torch.testing.assert_close(pieces[0].output(), scores.softmax(-1) @ values, rtol=0, atol=1e-10)


def test_finished_outputs_merge_by_their_logsumexp_in_any_order(heads):
    q, keys, values = heads(2, 1, 3, 9)
    parts = [tiled(q, keys[:, a:b], values[:, a:b]) for a, b in ((0, 2), (2, 3), (3, 9))]
    for chosen in itertools.permutations(parts):
        out, logsumexp = merge_outputs(*map(torch.stack, zip(*chosen, strict=True)))
        torch.testing.assert_close(out, naive(q, keys, values), **EXACT)
        torch.testing.assert_close(logsumexp, tiled(q, keys, values)[1], **EXACT)


def test_outputs_are_not_merged_by_plain_averaging():
    out, logsumexp = merge_outputs(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[0.0], [math.log(3)]]))
    assert out.item() == pytest.approx(4) and logsumexp.item() == pytest.approx(math.log(4))


def test_pieces_without_any_key_merge_to_zeros():
    out, logsumexp = merge_outputs(torch.zeros(3, 2, 4), torch.full((3, 2), -math.inf))
    assert not out.any() and logsumexp.isneginf().all()


@examples(60)
@given(T=st.integers(1, 4), S=st.integers(1, 12), group=st.integers(1, 3), splits=st.integers(1, 15))
def test_keys_divided_among_any_number_of_workers_give_the_same(T, S, group, splits):
    generator = torch.Generator().manual_seed(S)
    q, keys, values = (torch.randn(h, t, 4, generator=generator, dtype=torch.float64)
                       for h, t in ((2 * group, T), (2, S), (2, S)))  # fmt: skip
    out, logsumexp = split_kv(q, keys, values, splits, block_k=2)
    torch.testing.assert_close(out, naive(q, keys, values), **EXACT)
    torch.testing.assert_close(logsumexp, tiled(q, keys, values)[1], **EXACT)


def test_split_results_keep_the_dtype(heads):
    out, logsumexp = split_kv(*heads(dtype=torch.bfloat16), splits=3)
    assert out.dtype == torch.bfloat16 and logsumexp.dtype == torch.float32


@pytest.mark.parametrize("T, S", [(0, 3), (2, 0), (0, 0)])
def test_workers_without_queries_or_keys_give_zeros(heads, T, S):
    out, logsumexp = split_kv(*heads(2, 1, T, S), splits=2)
    assert out.shape == (2, T, 8) and not out.any() and logsumexp.isneginf().sum() == 2 * T


@pytest.mark.parametrize("call, message", [
    (lambda: merge_outputs(torch.zeros(2, 3, 4), torch.zeros(2, 4)), "needs a logsumexp per query"),
    (lambda: merge_outputs(torch.zeros(0, 3, 4), torch.zeros(0, 3)), "needs a logsumexp per query"),
    (lambda: split_kv(torch.zeros(1, 1, 2), torch.zeros(1, 4, 2), torch.zeros(1, 4, 2), 0), "splits=0 is no size"),
    (lambda: split_kv(*torch.zeros(3, 1, 4, 2), 2, block_k=0), "block_k=0 is no size"),
    (lambda: split_kv(*torch.zeros(2, 1, 4, 2), torch.zeros(1, 6, 2), 2), "one number of heads and tokens"),
])  # fmt: skip
def test_what_cannot_be_merged_or_split_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
