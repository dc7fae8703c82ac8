"""FlashAttention is attention, whatever the shapes, the blocks and the number of workers; softmax over pieces."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from torch.nn.attention import SDPBackend, sdpa_kernel

from lessons_lib.attention import naive, split_kv, tiled
from lessons_lib.attention.flash import Partial, merge_outputs
from lessons_lib.caches.cache import causal_mask

EXACT = dict(rtol=0, atol=1e-12)
sizes = st.integers(1, 9)


def oracle(q, keys, values, mask=None):
    """torch's own attention, which needs no causal rule of its own: the mask says all."""
    groups = q.shape[0] // keys.shape[0]
    keys, values = (x.repeat_interleave(groups, 0) for x in (keys, values))
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]


def random_heads(seed, H, group, T, S, d):
    generator = torch.Generator().manual_seed(seed)
    shapes = (H * group, T, d), (H, S, d), (H, S, d)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@examples(60)
@given(
    st.integers(0, 99), st.integers(1, 3), st.integers(1, 3), sizes, sizes, st.integers(1, 6),
    st.integers(1, 12), st.integers(1, 12), st.booleans(),
)  # fmt: skip
def test_tiles_of_any_size_give_torchs_attention(seed, H, group, T, S, d, block_q, block_k, causal):
    q, keys, values = random_heads(seed, H, group, T, S, d)
    mask = causal_mask(T, S) if causal else None
    wanted = oracle(q, keys, values, mask)
    out, logsumexp = tiled(q, keys, values, block_q, block_k, causal=causal)
    torch.testing.assert_close(out, wanted, **EXACT)
    assert not causal or torch.equal(logsumexp.isneginf().any(0), ~mask.any(1))  # queries without keys


@pytest.mark.parametrize("causal", [False, True])
def test_the_logsumexp_is_that_of_each_querys_scores(heads, causal):
    q, keys, values = heads(4, 2, 6, 9)
    scores = q @ keys.repeat_interleave(2, 0).mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(~causal_mask(6, 9), -torch.inf)
    torch.testing.assert_close(tiled(q, keys, values, 4, 4, causal)[1], scores.logsumexp(-1), **EXACT)


def test_causal_is_aligned_to_the_lower_right_unlike_torchs_flag():
    q, keys, values = torch.zeros(1, 2, 3), torch.zeros(1, 5, 3), torch.eye(5)[None]
    ours = tiled(q, keys, values, 1, 2, causal=True)[0][0]
    assert (ours > 0).sum(-1).tolist() == [4, 5]  # values are the identity: the output says which keys were used
    theirs = F.scaled_dot_product_attention(q, keys, values, is_causal=True)[0]
    assert (theirs > 0).sum(-1).tolist() == [1, 2]


def test_huge_scores_overflow_nothing(heads):
    q, keys, values = heads(1, 1, 4, 6, d=1)
    q, keys = q.sign() * 100, keys.sign() * 100  # scores of +-1e4: exp overflows beyond 709
    out, logsumexp = tiled(q, keys, values, 2, 2)
    torch.testing.assert_close(out, oracle(q, keys, values), **EXACT)
    assert out.isfinite().all() and logsumexp.abs().max() > 9e3


def test_sixteen_bits_are_accumulated_in_thirty_two(heads):
    q, keys, values = heads(2, 1, 3, 300, dtype=torch.bfloat16)
    out, logsumexp = tiled(q, keys, values, 2, 1)
    wanted = naive(q.double(), keys.double(), values.double())
    assert out.dtype == naive(q, keys, values).dtype == torch.bfloat16 and logsumexp.dtype == torch.float32
    assert (out - wanted).abs().max() < 2**-8 * wanted.abs().max()  # one rounding, not 300


@pytest.mark.parametrize("T, S", [(0, 3), (2, 0)])
def test_no_queries_give_nothing_and_no_keys_give_zeros(heads, T, S):
    q, keys, values = heads(2, 1, T, S)
    for out in (tiled(q, keys, values)[0], naive(q, keys, values)):
        assert out.shape == (2, T, 8) and not out.any()


def test_values_may_be_wider_than_keys(heads):
    q, keys, _ = heads(2, 1, 3, 4, d=5)
    values = torch.randn(1, 4, 7, dtype=torch.float64)
    for out in (tiled(q, keys, values, 2, 3)[0], naive(q, keys, values)):
        assert out.shape == (2, 3, 7)
        torch.testing.assert_close(out, oracle(q, keys, values), **EXACT)


@pytest.mark.parametrize("attend", [naive, tiled])
def test_every_form_checks_what_it_is_given(attend):
    with pytest.raises(ValueError, match="cannot share"):
        attend(torch.zeros(4, 5, 8), *torch.zeros(2, 3, 5, 8))


@pytest.mark.parametrize("blocks", [(0, 4), (4, -1)])
def test_a_block_of_no_size_is_refused(heads, blocks):
    with pytest.raises(ValueError, match="must be at least 1"):
        tiled(*heads(), *blocks)


# Online softmax


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


# Split-KV


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


@examples(60)
@given(T=st.integers(1, 4), S=st.integers(1, 12), group=st.integers(1, 3), splits=st.integers(1, 15))
def test_keys_divided_among_any_number_of_workers_give_the_same(T, S, group, splits):
    q, keys, values = random_heads(S, 2, group, T, S, 4)
    out, logsumexp = split_kv(q, keys, values, splits)
    torch.testing.assert_close(out, naive(q, keys, values), **EXACT)
    torch.testing.assert_close(logsumexp, tiled(q, keys, values)[1], **EXACT)


def test_split_results_keep_the_dtype(heads):
    out, logsumexp = split_kv(*heads(dtype=torch.bfloat16), splits=3)
    assert out.dtype == torch.bfloat16 and logsumexp.dtype == torch.float32


def test_keys_and_values_that_do_not_belong_together_cannot_be_split():
    with pytest.raises(ValueError, match="one number of heads and tokens"):
        split_kv(*torch.zeros(2, 1, 4, 2), torch.zeros(1, 6, 2), 2)


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="splits=0 must be at least 1"):
        split_kv(*torch.zeros(3, 1, 3, 2), 0)
