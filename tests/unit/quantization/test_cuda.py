"""A GPU's layers of 8 and 4 bits: values on any device, sizes by torch's own, numbers where a GPU is."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from lessons_lib.quantization import cuda
from lessons_lib.quantization.cuda import FusedW8A16Linear, TinyGemmW4A16Linear, in_pairs, tiles
from lessons_lib.quantization.integers import Grid, Integers, quantize
from lessons_lib.quantization.linear import W4A16Linear, W8A8Linear, W8A16Linear, weight_only


def random(*shape: int, **like) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(**like)


def elsewhere(rows: int, columns: int, group: int, bits: int = 4, dtype=torch.bfloat16) -> Integers:
    """A quantized matrix (rows, columns) of sizes alone, on the device where torch checks them without a GPU."""
    codes = torch.empty(rows * columns * bits // 8, dtype=torch.uint8, device="meta")
    scales = torch.empty(rows * columns // group, 1, dtype=torch.float16, device="meta")
    return Integers(torch.Size((rows, columns)), dtype, codes, Grid(bits, scales, lows=scales if bits == 4 else None))


@pytest.mark.parametrize("dtype, close", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_codes_of_8_bits_multiply_as_what_they_stand_for(dtype, close, compiled, rows):
    quantized, x = quantize(random(16, 24, dtype=dtype), 8), random(rows, 24, dtype=dtype)
    expected, layer = x.double() @ quantized.dequantize().double().T, FusedW8A16Linear(quantized)
    torch._dynamo.reset()
    out = (torch.compile(layer, backend="eager") if compiled else layer)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=close, atol=close * expected.abs().max().item())


def test_of_two_neighbouring_codes_the_first_is_the_high_half_of_the_byte():
    assert in_pairs(torch.tensor([[1, 2, 15, 0], [0, 7, 8, 9]])).tolist() == [[0x12, 0xF0], [0x07, 0x89]]


@pytest.mark.parametrize("columns, at_a_time", [(1536, 8), (576, 4), (96, 2)])
def test_codes_lie_as_many_tiles_at_a_time_as_a_row_can_be_divided_into(columns, at_a_time):
    packed = tiles(torch.empty(40, columns, dtype=torch.uint8, device="meta"))
    assert packed.shape == (5, columns // (16 * at_a_time), 32, at_a_time // 2)


def test_a_gpus_kernel_of_4_bits_takes_what_our_layer_gives_it():
    layer = TinyGemmW4A16Linear(elsewhere(960, 576, 32))
    assert layer.scales_and_zeros.shape == (576 // 32, 960, 2)
    with FakeTensorMode():  # torch's own check of what its kernel takes
        for name, part in [*layer.named_buffers()]:
            layer.register_buffer(name, torch.empty(part.shape, dtype=part.dtype, device="cuda"))
        assert layer(torch.empty(5, 576, dtype=torch.bfloat16, device="cuda")).shape == (5, 960)


@pytest.mark.parametrize("kind, sizes, expected", [
    (W4A16Linear, (64, 64, 32), TinyGemmW4A16Linear), (W4A16Linear, (64, 64, 16), None),
    (W4A16Linear, (24, 64, 32), None), (W4A16Linear, (64, 48, 48), None),
    (W4A16Linear, (64, 64, 32, 4, torch.float16), None), (W8A16Linear, (64, 64, 64, 8), FusedW8A16Linear),
    (W8A8Linear, (64, 64, 64, 8), None),
])  # fmt: skip
def test_kernels_are_for_the_sizes_and_dtypes_that_they_take(kind, sizes, expected):
    assert cuda.kernel_of(kind, elsewhere(*sizes)) is expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bits, per, kind", [(8, "row", "absmax"), (4, 32, "affine")])
def test_on_a_gpu_layers_give_what_the_codes_stand_for(bits, per, kind, compiled):
    quantized = quantize(random(960, 576, dtype=torch.bfloat16, device="cuda"), bits, per, kind)
    x, layer = random(5, 576, dtype=torch.bfloat16, device="cuda"), weight_only(quantized)
    expected = x.double() @ quantized.dequantize().double().T
    out = (torch.compile(layer) if compiled else layer)(x)
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item())
