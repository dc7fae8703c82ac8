"""Codes lie in the order in which the kernel in C++ reads them."""

import torch

from lessons_lib.quantization.cpu.layouts import interleaved


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
