"""Codes of 1 to 8 bits without a gap between them (lesson 10): two codes of 4 bits in a byte, eight of 3 in three.

The lowest bit comes first, so the first of two 4-bit codes is the low half of its byte.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes 0 .. 2^bits - 1 of any shape -> bytes (ceil(count·bits / 8),), what is left of the last one zero."""
    codes = codes.reshape(-1).to(torch.uint8)
    if bits == 8:
        return codes
    if bits == 4:  # the commonest width; bit by bit it takes many times as long
        low, high = F.pad(codes, (0, len(codes) % 2)).view(-1, 2).T
        return low | high << 4
    stream = (codes[:, None] >> _places(bits, codes)) & 1
    stream = F.pad(stream.flatten(), (0, -stream.numel() % 8)).view(-1, 8)
    return (stream << _places(8, codes)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse: bytes -> the first `count` codes, uint8 (count,)."""
    if bits == 8:
        return packed[:count]
    if bits == 4:
        return torch.stack([packed & 15, packed >> 4], 1).flatten()[:count]
    stream = (packed[:, None] >> _places(8, packed)) & 1
    codes = stream.flatten()[: count * bits].view(count, bits)
    return (codes << _places(bits, packed)).sum(1, dtype=torch.uint8)


def _places(bits: int, like: Tensor) -> Tensor:
    return torch.arange(bits, dtype=torch.uint8, device=like.device)
