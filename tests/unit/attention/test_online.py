"""Softmax over pieces: the case worked by hand, and merging in any order."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.attention import Partial, merge_outputs, naive, tiled

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


@pytest.mark.parametrize("call, message", [
    (lambda: merge_outputs(torch.zeros(2, 3, 4), torch.zeros(2, 4)), "needs a logsumexp per query"),
    (lambda: merge_outputs(torch.zeros(0, 3, 4), torch.zeros(0, 3)), "needs a logsumexp per query"),
])  # fmt: skip
def test_what_cannot_be_merged_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
