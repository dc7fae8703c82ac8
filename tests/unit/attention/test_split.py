"""Keys divided among workers: the same attention, whatever the number of workers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.attention import naive, split_kv, tiled

EXACT = dict(rtol=0, atol=1e-12)


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
    (lambda: split_kv(torch.zeros(1, 1, 2), torch.zeros(1, 4, 2), torch.zeros(1, 4, 2), 0), "splits=0 is no size"),
    (lambda: split_kv(*torch.zeros(3, 1, 4, 2), 2, block_k=0), "block_k=0 is no size"),
    (lambda: split_kv(*torch.zeros(2, 1, 4, 2), torch.zeros(1, 6, 2), 2), "one number of heads and tokens"),
])  # fmt: skip
def test_what_cannot_be_split_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
