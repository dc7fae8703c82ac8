"""Attention by its definition: a case by hand, and torch's own attention as the oracle, whatever the mask."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention import naive
from lessons_lib.caches.cache import causal_mask

sizes = st.integers(1, 9)


def test_by_hand_two_keys_of_which_the_first_weighs_three_times_as_much():
    """Scores ln 3 and 0 (after the division by the root of d = 4): weights 3/4 and 1/4."""
    q = torch.tensor([[[2.0, 0.0, 0.0, 0.0]]])
    keys = torch.tensor([[[math.log(3), 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]])
    values = torch.tensor([[[8.0], [4.0]]])
    torch.testing.assert_close(naive(q, keys, values), torch.tensor([[[7.0]]]))


@examples(60)
@given(seed=st.integers(0, 999), T=sizes, S=sizes, causal=st.booleans(), masked=st.booleans())
def test_torchs_attention_with_any_mask_beside_the_causal_rule_queries_that_see_nothing_included(
    seed, T, S, causal, masked
):
    generator = torch.Generator().manual_seed(seed)
    shapes = (4, T, 3), (2, S, 3), (2, S, 3)
    q, keys, values = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    mask = torch.rand(T, S, generator=generator) < 0.4 if masked else None
    allowed = causal_mask(T, S) if causal else torch.ones(T, S, dtype=torch.bool)
    allowed = allowed & mask if masked else allowed
    shared = (x.repeat_interleave(2, 0)[None] for x in (keys, values))
    with sdpa_kernel(SDPBackend.MATH):
        wanted = scaled_dot_product_attention(q[None], *shared, attn_mask=allowed)[0]
    assert not wanted[:, ~allowed.any(1)].any()
    torch.testing.assert_close(naive(q, keys, values, causal, mask), wanted, rtol=0, atol=1e-12)


def test_inputs_stay_as_they_were_and_the_result_has_their_dtype(heads):
    q, keys, values = heads(1, 1, 4, 4, dtype=torch.bfloat16)
    before = [x.clone() for x in (q, keys, values)]
    assert naive(q, keys, values, causal=True).dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(before, (q, keys, values), strict=True))
