"""A faster argmax for CPUs (lesson 06): by numpy, because torch's takes a noticeable part of a small model's step."""

import torch
from torch import Tensor


def argmax_on_cpu(logits: Tensor) -> list[int]:
    """`logits.argmax(-1).tolist()` for logits (n, V) on a CPU; among equal logits the first. NaN is not handled."""
    logits = logits.detach()
    # numpy has no bf16. But the bits of positive floats, read as integers, have the same order as the values and are
    # larger than those of negative floats. So the argmax of the bits is right wherever the maximum is above 0.
    if logits.dtype in (torch.bfloat16, torch.float16):
        bits = logits.view(torch.int16).numpy()
        best = bits.argmax(-1).tolist()
        if all(row[token] > 0 for row, token in zip(bits, best, strict=True)):
            return best
        logits = logits.float()
    return logits.numpy().argmax(-1).tolist()
