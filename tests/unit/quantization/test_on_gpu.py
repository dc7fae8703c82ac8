"""A GPU's products with codes of 8 and 4 bits: values on any device, sizes by torch's own, numbers where a GPU is."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from lessons_lib.quantization import linear
from lessons_lib.quantization.cpu import Int8Weights
from lessons_lib.quantization.formats import Grid, Integers, quantize
from lessons_lib.quantization.linear import Int4Tiles, Plain, in_pairs, tiles, weights_alone


def random(*shape: int, **like) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(**like)


def elsewhere(rows: int, columns: int, group: int, bits: int = 4, dtype=torch.bfloat16, lows: bool = True) -> Integers:
    """A quantized matrix (rows, columns) of sizes alone, on the device where torch checks them without a GPU."""
    codes = torch.empty(rows * columns * bits // 8, dtype=torch.uint8, device="meta")
    scales = torch.empty(rows * columns // group, 1, dtype=torch.float16, device="meta")
    return Integers(torch.Size((rows, columns)), dtype, codes, Grid(bits, scales, lows=scales if lows else None))


def as_if_on_gpu(x: torch.Tensor) -> torch.Tensor:
    """A tensor of this size that passes for one on a GPU, within FakeTensorMode."""
    return torch.empty(x.shape, dtype=x.dtype, device="cuda")


@pytest.mark.parametrize("dtype, close", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("how, rows", [("multiply", 1), ("multiply", 3), ("traced", 1), ("traced", 3)])
def test_levels_of_8_bits_multiply_as_what_they_stand_for(dtype, close, how, rows):
    quantized, x = quantize(random(16, 24, dtype=dtype), 8), random(rows, 24, dtype=dtype)
    expected, matrix = x.double() @ quantized.dequantize().double().T, Int8Weights(quantized)
    matrix.on_cpu, matrix.words = False, None  # as if it lay on a GPU
    out = getattr(matrix, how)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=close, atol=close * expected.abs().max().item())


def test_of_two_neighbouring_codes_the_first_is_the_high_half_of_the_byte():
    assert in_pairs(torch.tensor([[1, 2, 15, 0], [0, 7, 8, 9]])).tolist() == [[0x12, 0xF0], [0x07, 0x89]]


@pytest.mark.parametrize("columns, at_a_time", [(1536, 8), (576, 4), (96, 2)])
def test_codes_lie_as_many_tiles_at_a_time_as_a_row_can_be_divided_into(columns, at_a_time):
    packed = tiles(torch.empty(40, columns, dtype=torch.uint8, device="meta"))
    assert packed.shape == (5, columns // (16 * at_a_time), 32, at_a_time // 2)


def test_a_gpus_matrices_get_a_gpus_products_of_the_right_sizes(monkeypatch):
    monkeypatch.setitem(linear.KERNELS, "meta", linear.KERNELS["cuda"])
    four, eight = weights_alone(elsewhere(960, 576, 32)), weights_alone(elsewhere(960, 576, 576, bits=8, lows=False))
    assert (type(four), type(eight)) == (Int4Tiles, Int8Weights)
    assert four.scales_and_zeros.shape == (576 // 32, 960, 2)
    with FakeTensorMode():  # torch's own check of what its kernel takes
        four.packed, four.scales_and_zeros = as_if_on_gpu(four.packed), as_if_on_gpu(four.scales_and_zeros)
        assert four.multiply(torch.empty(5, 576, dtype=torch.bfloat16, device="cuda")).shape == (5, 960)
    assert type(weights_alone(elsewhere(960, 576, 16))) is Plain


@pytest.mark.parametrize("other, said", [
    (dict(group=16), "in groups of 16"),
    (dict(bits=8), "of 8 bits"),
    (dict(lows=False), "takes quantize"),
    (dict(rows=24), "not 24 rows"),
    (dict(dtype=torch.float16), "takes bfloat16, not torch.float16"),
])  # fmt: skip
def test_what_the_gpus_kernel_of_4_bits_cannot_read_is_refused(other, said):
    with pytest.raises(ValueError, match=said):
        Int4Tiles(elsewhere(**dict(rows=64, columns=64, group=32) | other))


def test_inputs_of_another_dtype_and_a_cpus_matrix_are_refused():
    with pytest.raises(ValueError, match="takes bfloat16, not torch.float16"):
        Int4Tiles(elsewhere(64, 64, 32)).multiply(torch.empty(1, 64, dtype=torch.float16, device="meta"))
    with pytest.raises(ValueError, match="reads no tensor on a CPU; use Int4Weights"):
        Int4Tiles(quantize(random(16, 64, dtype=torch.bfloat16), 4, 32, "minimum"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bits, per, kind", [(8, "row", "absmax"), (4, 32, "minimum")])
def test_on_a_gpu_products_give_what_the_codes_stand_for(bits, per, kind, compiled):
    quantized = quantize(random(960, 576, dtype=torch.bfloat16, device="cuda"), bits, per, kind)
    x, matrix = random(5, 576, dtype=torch.bfloat16, device="cuda"), weights_alone(quantized)
    expected = x.double() @ quantized.dequantize().double().T
    out = (torch.compile(matrix.traced) if compiled else matrix.multiply)(x)
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item())
