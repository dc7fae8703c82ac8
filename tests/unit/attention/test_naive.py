"""Attention by its definition: a case by hand, torch's kernel as the oracle, and queries that see nothing."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention import naive


def test_by_hand_two_keys_of_which_the_first_weighs_three_times_as_much():
    """Scores ln 3 and 0 (after the division by the root of d = 4): weights 3/4 and 1/4."""
    q = torch.tensor([[[2.0, 0.0, 0.0, 0.0]]])
    keys = torch.tensor([[[math.log(3), 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]])
    values = torch.tensor([[[8.0], [4.0]]])
    torch.testing.assert_close(naive(q, keys, values), torch.tensor([[[7.0]]]))


@pytest.mark.parametrize("H, H_kv, T, S", [(1, 1, 5, 5), (4, 2, 3, 7), (6, 1, 1, 9), (2, 2, 6, 6)])
@pytest.mark.parametrize("causal", [False, True])
def test_torchs_kernel_agrees_and_the_last_query_sees_the_last_key(heads, H, H_kv, T, S, causal):
    q, keys, values = heads(H, H_kv, T, S)
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T) if causal else None
    expected = scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(naive(q, keys, values, causal=causal), expected, rtol=0, atol=1e-12)


def test_a_query_that_may_see_nothing_gets_zeros_and_the_others_what_they_see(heads):
    q, keys, values = heads(2, 2, 3, 4)
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    out = naive(q, keys, values, mask=mask)
    assert not out[:, 1].any()
    expected = scaled_dot_product_attention(q[:, ::2], keys, values, attn_mask=mask[::2])
    torch.testing.assert_close(out[:, ::2], expected, rtol=0, atol=1e-12)


def test_inputs_stay_as_they_were_and_the_result_has_their_dtype(heads):
    q, keys, values = heads(1, 1, 4, 4, dtype=torch.bfloat16)
    before = [x.clone() for x in (q, keys, values)]
    assert naive(q, keys, values, causal=True).dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(before, (q, keys, values), strict=True))
