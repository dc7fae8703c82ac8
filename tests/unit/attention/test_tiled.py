"""Tiled attention is attention: equal to torch's kernel and to the naive form, whatever the shapes and the blocks."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from torch.nn.attention import SDPBackend, sdpa_kernel

from lessons_lib.attention import naive, tiled
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
    out, _ = tiled(q, keys, values, block_q, block_k, causal=causal)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(naive(q, keys, values, causal=causal), wanted, **EXACT)


@examples(60)
@given(seed=st.integers(0, 999), T=sizes, S=sizes, block_q=sizes, block_k=sizes, causal=st.booleans())
def test_any_mask_beside_the_causal_rule_rows_that_see_nothing_included(seed, T, S, block_q, block_k, causal):
    q, keys, values = random_heads(seed, 2, 2, T, S, 3)
    mask = torch.rand(T, S, generator=torch.Generator().manual_seed(seed)) < 0.4
    allowed = mask & causal_mask(T, S) if causal else mask
    wanted = oracle(q, keys, values, allowed)
    assert not wanted[:, ~allowed.any(1)].any()  # a row that sees nothing is zeros
    for attend in (naive, lambda *a, **k: tiled(*a, block_q, block_k, **k)[0]):
        torch.testing.assert_close(attend(q, keys, values, causal=causal, mask=mask), wanted, **EXACT)
    out, logsumexp = tiled(q, keys, values, block_q, block_k, causal, mask)
    torch.testing.assert_close(out, wanted, **EXACT)
    assert torch.equal(logsumexp.isneginf().any(0), ~allowed.any(1))


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


@pytest.mark.parametrize("blocks", [(0, 4), (4, -1), (2.0, 4)])
def test_a_block_of_no_size_is_refused(heads, blocks):
    with pytest.raises(ValueError, match="block_[qk]=.* is no size"):
        tiled(*heads(), *blocks)
