"""8- and 4-bit codes in the layouts that CPUs read fastest (lessons 10, 11), and matmuls over them.

Codes are packed into int32, 4-bit codes with 16 rows interleaved. Compiled code reads them through a float32 view,
because with AVX2 torch.compile vectorises only loads of floats.
"""

import torch
from torch import Tensor

from lessons_lib.compiler import kept_in_memory
from lessons_lib.quantization.cpu import CHUNK, STREAMS
from lessons_lib.quantization.integers import Integers
from lessons_lib.quantization.linear import GROUP

BYTES, NIBBLES = 4, 8  # 8-bit and 4-bit codes in a 32-bit word
LANES = 16  # rows of a 4-bit matrix that are interleaved, one per SIMD lane: no sum runs across lanes
SUMS = 16  # rows of x up to which sums over packed codes, unpacked once for all rows, beat the library's matmul


def as_floats(codes: Tensor) -> Tensor | None:
    """View codes, int8 (N, K) or packed in int32, as float32 in the same memory; None if K is not a multiple of 4."""
    return codes.view(torch.float32) if codes.shape[-1] % BYTES == 0 else None


def times_bytes(x: Tensor, packed: Tensor) -> Tensor:
    """x (T, K) times int8 codes packed as (N, K/4) -> (T, N): few rows as sums in one loop, many by matmul."""
    if len(x) == 1:
        return torch.cat([byte_row(x, part) for part in packed.chunk(STREAMS)], 1)
    if len(x) <= SUMS:
        return torch.cat([byte_row(row, packed) for row in x.split(1)])
    rows = max(1, CHUNK // x.shape[1])
    return torch.cat([byte_rows(x, part) for part in packed.split(rows)], 1)


def byte_planes(packed: Tensor) -> list[Tensor]:
    """Unpack (N, K/4) float32 -> four (N, K/4) int32: signed codes of columns 0, 4, 8, ...; 1, 5, ... etc."""
    w = packed.view(torch.int32)
    return [(w << (24 - 8 * place)) >> 24 for place in range(BYTES)]


def byte_row(x: Tensor, packed: Tensor) -> Tensor:
    """x (1, K) times int8 codes packed as (N, K/4) -> (1, N) in x's dtype, summed in float32 or better."""
    exact = torch.promote_types(x.dtype, torch.float32)
    parts = kept_in_memory(x.to(exact).view(-1, BYTES).T)
    return sum(plane * part for plane, part in zip(byte_planes(packed), parts, strict=True)).sum(-1)[None]


def byte_rows(x: Tensor, packed: Tensor) -> Tensor:
    """As `byte_row` for x (T, K): the codes are unpacked into x's dtype and multiplied by the library's matmul."""
    wide = torch.cat([plane.to(x.dtype) for plane in byte_planes(packed)], 1)
    return x.view(len(x), -1, BYTES).transpose(1, 2).reshape(x.shape) @ wide.T


def pack_nibbles(levels: Tensor) -> Tensor:
    """Pack codes (N, K) 0 .. 15 into (N/16, K/8, 16) float32: eight columns per int32, 16 rows interleaved."""
    rows, columns = levels.shape
    parts = levels.view(rows, columns // NIBBLES, NIBBLES).int()
    packed = sum(parts[..., place] << (4 * place) for place in range(NIBBLES)).int()
    return packed.view(rows // LANES, LANES, -1).transpose(1, 2).contiguous().view(torch.float32)


def nibble_planes(packed: Tensor) -> list[Tensor]:
    """Unpack (..., 16) -> eight int32 of that shape: columns 0, 8, 16, ...; 1, 9, ... and so on, each 0 .. 15."""
    w = packed.view(torch.int32)
    return [(w >> (4 * place)) & 15 for place in range(NIBBLES)]


def times_nibbles(x: Tensor, packed: Tensor, scales: Tensor, lows: Tensor) -> Tensor:
    """x (T, K) times 4-bit codes in groups -> (T, N): one row as sums (`nibble_row`), several by matmul."""
    if len(x) == 1:
        return nibble_row(x, packed, scales, lows)
    blocks = max(1, CHUNK // (LANES * x.shape[1]))
    parts = zip(*(part.split(blocks) for part in (packed, scales, lows)), strict=True)
    return torch.cat([nibble_rows(x, *part) for part in parts], 1)


def nibble_row(x: Tensor, packed: Tensor, scales: Tensor, lows: Tensor) -> Tensor:
    """x (1, K) times 4-bit codes -> (1, N) in float32 or better: y_n = sum over groups of s·sum(q·x) + low·sum(x).

    packed: (N/16, K/8, 16), from `pack_nibbles`. scales and lows: (N/16, K/32, 16).
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    grouped = x.to(exact).view(-1, GROUP // NIBBLES, NIBBLES)  # (K/32, 4 int32, 8 codes)
    parts, totals = kept_in_memory(grouped), kept_in_memory(grouped.sum((1, 2)))
    by_group = packed.view(len(packed), -1, GROUP // NIBBLES, LANES)
    total = 0.0
    for word in range(GROUP // NIBBLES):
        for place, plane in enumerate(nibble_planes(by_group[:, :, word])):
            total = total + plane * parts[:, word, place, None]
    return (total * scales.to(exact) + lows.to(exact) * totals[:, None]).sum(1).view(1, -1)


def nibble_values(packed: Tensor, scales: Tensor, lows: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantize to weights (8, K/8, N) in dtype, plane by plane: entry (p, w, n) is column 8·w + p of row n."""
    exact = torch.promote_types(dtype, torch.float32)
    scales, lows = (part.to(exact).repeat_interleave(GROUP // NIBBLES, 1) for part in (scales, lows))
    planes = [(plane * scales + lows).to(dtype).transpose(0, 1).flatten(1) for plane in nibble_planes(packed)]
    return torch.stack(planes)


def nibble_rows(x: Tensor, packed: Tensor, scales: Tensor, lows: Tensor) -> Tensor:
    """As `nibble_row` for x (T, K), in x's dtype: weights are dequantized and multiplied by the library's matmul."""
    wide = nibble_values(packed, scales, lows, x.dtype).flatten(0, 1)
    return x.view(len(x), -1, NIBBLES).transpose(1, 2).reshape(x.shape) @ wide


QUAD = 4  # columns that one VNNI instruction sums


def multiply_codes(x: Tensor, codes: Tensor) -> Tensor:
    """x (T, K) times codes (N, K) int8 -> (T, N) in x's dtype, converting a few rows of codes at a time."""
    rows = max(1, CHUNK // codes.shape[1])
    return torch.cat([x @ part.to(x.dtype).T for part in codes.split(rows)], 1)


def interleaved(levels: Tensor, bits: int) -> Tensor:
    """Codes (N, K) uint8 in the layout of the C++ kernel, (N/16, K/32, bytes): quads of columns, 16 rows of each.

    For 4 bits, a byte holds a code of an even quad in its low half and one of the next quad in its high half.
    """
    quads = levels.view(len(levels) // LANES, LANES, -1, GROUP // QUAD, QUAD).permute(0, 2, 3, 1, 4)
    if bits == 4:
        quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
    return quads.flatten(2).contiguous()


def side_by_side(part: Tensor, rows: int) -> Tensor:
    """Interleave the rows of a per-group value: (N·groups, 1) -> (N/16, groups, 16), one row per lane."""
    return part.view(rows // LANES, LANES, -1).transpose(1, 2).contiguous()


def scales_and_minima(quantized: Integers) -> Tensor:
    """Scale and minimum of each group in the layout of the C++ kernel: (N/16, K/32, 2, 16)."""
    grid, rows = quantized.grid, quantized.shape[0]
    return torch.stack([side_by_side(grid.scales, rows), side_by_side(grid.lows, rows)], 2).contiguous()
