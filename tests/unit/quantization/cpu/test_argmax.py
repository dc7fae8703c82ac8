"""The argmax for CPUs is torch's, the first of equals, in every format."""

import pytest
import torch

from lessons_lib.quantization.cpu.argmax import argmax_on_cpu


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_it_is_the_first_of_the_largest_logits_in_every_format(dtype):
    """Where all are negative and where the best is 0, too: in 16 bits they are compared as integers."""
    logits = torch.randint(0, 9, (7, 500), generator=torch.Generator().manual_seed(0)).to(dtype)
    none = torch.full_like(logits[:1], -float("inf"))
    zeros = torch.tensor([[-1, -0.0, 0.0] + [-2.0] * 497]).to(dtype)
    for shifted in (logits, logits + 1, logits - 4, logits - 8, logits - 20.5, torch.cat([logits, none]), zeros):
        first = [row.index(max(row)) for row in shifted.tolist()]
        assert argmax_on_cpu(shifted) == first
