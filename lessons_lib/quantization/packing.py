"""Codes of 1 to 8 bits without a gap between them (lesson 10): two codes of 4 bits in a byte, eight of 3 in three.

The lowest bit comes first, so the first of two 4-bit codes is the low half of its byte. Eight codes fill `bits` bytes;
code i begins in byte i·bits // 8, and may end in the next.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

EIGHT = 8  # codes that together end where a byte ends, and bits of that


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes 0 .. 2^bits - 1 of any shape -> bytes (ceil(count·bits / 8),), what is left of the last one zero."""
    codes = codes.reshape(-1).to(torch.uint8)
    if bits == EIGHT:
        return codes
    eights = F.pad(codes, (0, -len(codes) % EIGHT)).view(-1, EIGHT)
    packed = torch.zeros(len(eights), bits + 1, dtype=torch.uint8, device=codes.device)
    for i, (byte, shift) in enumerate(_begins(bits)):
        packed[:, byte] |= eights[:, i] << shift
        packed[:, byte + 1] |= eights[:, i] >> (EIGHT - shift) if shift else 0
    return packed[:, :bits].flatten()[: -(-len(codes) * bits // EIGHT)]


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse: bytes -> the first `count` codes, uint8 (count,)."""
    if bits == EIGHT:
        return packed[:count]
    groups = F.pad(packed, (0, -len(packed) % bits)).view(-1, bits)
    groups = F.pad(groups, (0, 1))  # the last code ends in no further byte
    codes = [groups[:, byte] >> shift | (groups[:, byte + 1] << (EIGHT - shift) if shift else 0)
             for byte, shift in _begins(bits)]  # fmt: skip
    return (torch.stack(codes, 1) & 2**bits - 1).flatten()[:count]


def _begins(bits: int) -> list[tuple[int, int]]:
    """(byte, bit within it) where each of eight codes begins: (0, 0), (0, 3), (0, 6), (1, 1), ... of 3 bits."""
    return [divmod(i * bits, EIGHT) for i in range(EIGHT)]
