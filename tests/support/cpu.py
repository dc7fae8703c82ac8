"""Attention's inputs for our kernels in C++, and the mark of tests that need those kernels."""

import pytest
import torch

by_kernel = pytest.mark.usefixtures("kernels")


def inputs(kv_heads, groups, rows, entries, dim, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q, keys, values = (
        torch.randn(heads, count, dim, generator=generator).to(dtype)
        for heads, count in ((kv_heads * groups, rows), (kv_heads, entries), (kv_heads, entries))
    )
    mask = torch.rand(rows, entries, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(entries, (rows,), generator=generator)] = True  # each row sees something
    return 2 * q, keys, values, mask
