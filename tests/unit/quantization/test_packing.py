"""Codes of any width leave no gap, come back, and lie as another library packs bits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.quantization.formats import pack, unpack


@given(data=st.data(), bits=st.integers(1, 8), count=st.integers(1, 70))
def test_codes_come_back_from_as_few_bytes_as_hold_them(data, bits, count):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count))
    packed = pack(torch.tensor(codes), bits)
    assert packed.dtype == torch.uint8 and len(packed) == -(-count * bits // 8)
    assert unpack(packed, bits, count).tolist() == codes


@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_lie_as_numpy_packs_them_lowest_first(bits):
    codes = np.random.default_rng(0).integers(0, 2**bits, 50, dtype=np.uint8)
    stream = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits]
    assert pack(torch.from_numpy(codes), bits).tolist() == np.packbits(stream, bitorder="little").tolist()


def test_the_first_of_two_4_bit_codes_is_the_low_half_of_the_byte():
    assert pack(torch.tensor([1, 2, 15, 0, 7]), 4).tolist() == [0x21, 0x0F, 0x07]


def test_any_shape_is_packed_row_after_row():
    codes = torch.arange(8).view(2, 4)
    assert torch.equal(pack(codes, 3), pack(codes.flatten(), 3))
