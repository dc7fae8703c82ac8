"""Codes lie in the order in which the kernel in C++ reads them, and matmuls over packed codes give what they should."""

from types import SimpleNamespace

import pytest
import torch

from lessons_lib.quantization.cpu.layouts import (
    SUMS,
    as_floats,
    interleaved,
    pack_nibbles,
    scales_and_minima,
    side_by_side,
    times_bytes,
    times_nibbles,
)
from lessons_lib.quantization.linear import GROUP


def test_codes_stand_by_quads_of_columns_16_rows_of_each_and_two_of_4_bits_in_a_byte():
    levels = torch.arange(16 * 32, dtype=torch.uint8).view(16, 32)
    eight = interleaved(levels, 8).view(8, 16, 4)
    assert all(torch.equal(eight[quad], levels[:, 4 * quad : 4 * quad + 4]) for quad in range(8))
    four = interleaved(levels % 16, 4).view(4, 16, 4)
    assert four.numel() == 16 * 32 / 2
    for pair in range(4):
        lower, upper = four[pair] & 15, four[pair] >> 4
        assert torch.equal(lower, levels[:, 8 * pair : 8 * pair + 4] % 16)
        assert torch.equal(upper, levels[:, 8 * pair + 4 : 8 * pair + 8] % 16)


@pytest.mark.parametrize("tokens", [1, 5, SUMS + 1])
def test_matmuls_over_packed_codes_are_those_of_the_unpacked_ones(tokens):
    torch.manual_seed(0)
    x, codes = torch.randn(tokens, 64).double(), torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    torch.testing.assert_close(times_bytes(x, as_floats(codes)), x @ codes.double().T)
    levels, scales, lows = torch.randint(0, 16, (48, 64)), *torch.randn(2, 48, 64 // GROUP).double()
    weights = levels * scales.repeat_interleave(GROUP, 1) + lows.repeat_interleave(GROUP, 1)
    apart = (side_by_side(part.view(-1, 1), 48) for part in (scales, lows))
    torch.testing.assert_close(times_nibbles(x, pack_nibbles(levels), *apart), x @ weights.T)


def test_scale_and_minimum_of_a_group_stand_side_by_side_for_16_rows():
    scales, lows = torch.arange(64.0).view(-1, 1), torch.arange(64.0, 128.0).view(-1, 1)  # 32 rows of 2 groups
    found = scales_and_minima(SimpleNamespace(grid=SimpleNamespace(scales=scales, lows=lows), shape=(32, 64)))
    assert found.shape == (2, 2, 2, 16)
    assert found[1, 0, :, 3].tolist() == [2 * 19, 64 + 2 * 19] and found[0, 1, :, 0].tolist() == [1, 65]
