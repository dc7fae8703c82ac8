"""Each rounded product against the plain one, as it plugs into a decoder, and what its kernel cannot take."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.kernels import Kernels
from lessons_lib.quantization import cpu
from lessons_lib.quantization.cpu import Int4Weights, Int4Words, Int8Both, Int8Weights, Matrix, MixedProduct
from lessons_lib.quantization.formats import Integers, quantize, quantize_fp8, quantize_nf4
from lessons_lib.quantization.linear import Grouped, Plain, Products, Scaled, weights_alone

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(params=[True, False], ids=["packed kernels", "words"], autouse=True)
def packed_kernels(request, monkeypatch):
    """A CPU with and one without vectorised packed kernels; both run here, fast or not."""
    monkeypatch.setattr(cpu, "packed_kernels", lambda: request.param)


def random(*shape: int, seed: int = 0, dtype=torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_product(matrix: Matrix, restored: Tensor, x: Tensor, product: str = "multiply") -> None:
    """As the product with the restored weight, but for the dtype's rounding of a sum of that size."""
    out, right = getattr(matrix, product)(x), x.double() @ restored.double().T
    assert out.dtype == x.dtype and out.shape == right.shape
    size = x.double().abs() @ restored.double().abs().T
    assert ((out.double() - right).abs() <= ROUNDING[x.dtype] * size).all()


@DTYPES
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_int8_weights_give_the_plain_product_of_the_rounded_weight(dtype, rows):
    quantized = quantize(random(33, 96, dtype=dtype), 8, scale_dtype=dtype)
    for product in ("multiply", "traced"):
        check_product(
            Int8Weights(quantized), quantized.dequantize(), random(rows, 96, seed=1, dtype=dtype), product=product
        )


@DTYPES
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_int4_words_give_the_plain_product_of_the_rounded_weight(dtype, rows):
    quantized = quantize((random(48, 128) + 0.3).to(dtype), 4, 32, "minimum", torch.float32)
    x = random(rows, 128, seed=1, dtype=dtype)
    for product in ("multiply", "traced"):
        check_product(Int4Words(quantized), quantized.dequantize(), x, product=product)


@DTYPES
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_int4_weights_give_the_plain_product_of_the_rounded_weight(dtype, group, rows):
    weight = (random(48, 128) + 0.3).to(dtype)
    quantized = quantize(weight, 4, group, "minimum", torch.float32)
    for product in ("multiply", "traced"):
        check_product(
            Int4Weights(quantized), quantized.dequantize(), random(rows, 128, seed=1, dtype=dtype), product=product
        )


def test_the_int4_kernels_levels_are_worked_by_hand():
    """w = (q - 8)·scale + zero: from 0 to 15 in steps of 0.5, all at 2, all at 3.5, for an x of ones."""
    weight = torch.cat(
        [torch.arange(16.0).repeat(2)[None] / 2 - 4, torch.full((1, 32), 2.0), torch.full((14, 32), 3.5)]
    )
    out = Int4Weights(quantize(weight, 4, 32, "minimum")).multiply(torch.ones(1, 32))
    assert out[0, :3].tolist() == pytest.approx([-8.0, 64.0, 112.0], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 17])
def test_int8_both_are_off_by_half_a_step_of_x_at_most(dtype, rows):
    quantized, x = quantize(random(33, 96, dtype=dtype), 8, scale_dtype=dtype), random(rows, 96, seed=1, dtype=dtype)
    matrix, right = Int8Both(quantized), x.double() @ quantized.dequantize().double().T
    out = matrix.multiply(x)
    torch.testing.assert_close(matrix.traced(x), out)
    half = x.double().abs().amax(1, True) / 254 * quantized.dequantize().double().abs().sum(1)
    size = x.double().abs() @ quantized.dequantize().double().abs().T
    assert out.dtype == dtype and ((out.double() - right).abs() <= half + ROUNDING[dtype] * size).all()
    assert (out.double() - right).abs().max() > 0


@pytest.mark.parametrize("make", [
    lambda w: quantize(w, 3, 32), lambda w: quantize(w, 8, "tensor", "zero_point"), lambda w: quantize_nf4(w, 32),
    lambda w: quantize_fp8(w, "e5m2"),
], ids=["int3", "zero point", "nf4", "fp8"])  # fmt: skip
@DTYPES
def test_any_format_gives_its_values_back_for_a_plain_product(make, dtype):
    quantized = make(random(8, 64, dtype=dtype))
    check_product(Plain(quantized), quantized.dequantize(), random(2, 64, seed=1, dtype=dtype))


def test_weights_alone_go_through_a_packed_kernel_where_there_is_one():
    w, x = random(16, 64), random(2, 64, seed=1)
    eight, four, float64 = quantize(w), quantize(w, 4, 32, "minimum"), quantize(w.double())
    assert isinstance(weights_alone(eight), Int8Weights) and isinstance(weights_alone(four), Int4Words | Int4Weights)
    for other in (float64, quantize(w, 4, 16, "minimum"), quantize(w, 8, 32), quantize_nf4(w), on_meta(eight)):
        assert isinstance(weights_alone(other), Plain)
    assert torch.equal(weights_alone(float64).multiply(x.double()), F.linear(x.double(), float64.dequantize()))


def test_packed_kernels_refuse_an_x_in_float64():
    for matrix in (Int8Weights(quantize(random(16, 64))), Int4Weights(quantize(random(16, 64), 4, 32, "minimum"))):
        with pytest.raises(ValueError, match="torch.bfloat16, torch.float16, not torch.float64; use Plain"):
            matrix.multiply(random(2, 64).double())


def test_a_strided_x_is_read_as_it_stands():
    w, x = random(16, 64), random(64, 3, seed=1).T
    for matrix in (Int8Weights(quantize(w)), Int8Both(quantize(w)), Int4Weights(quantize(w, 4, 32, "minimum"))):
        torch.testing.assert_close(matrix.multiply(x), matrix.multiply(x.contiguous()))


def test_a_scaled_matrix_divides_its_input():
    w, x, s = random(16, 64), random(2, 64, seed=1), random(64, seed=2).abs() + 0.5
    matrix = Scaled(Int8Weights(quantize(w * s, scale_dtype=torch.float32)), s)
    assert torch.equal(matrix.multiply(x), matrix.matrix.multiply(x / s))
    assert (matrix.multiply(x) - x @ w.T).abs().max() < 0.3 < (matrix.matrix.multiply(x) - x @ w.T).abs().max()


def test_products_look_a_weight_up_and_leave_other_weights_alone():
    w, other, x = random(16, 64), random(16, 64, seed=3), random(3, 64, seed=1)
    matrix = Plain(quantize(w, 2))
    multiply = Products([(w, matrix)])
    assert torch.equal(multiply(x, w), matrix.multiply(x)) and torch.equal(multiply(x, other), F.linear(x, other))
    seen = multiply.compiled(lambda x, weight: x.sum(-1, keepdim=True))
    assert torch.equal(seen(x, w), matrix.traced(x)) and torch.equal(seen(x, other), x.sum(-1, keepdim=True))


def test_products_in_the_dtype_of_x_whatever_the_weights_is():
    w, x = random(16, 64), random(2, 64, seed=1, dtype=torch.bfloat16)
    plain = Plain(quantize(w))
    assert torch.equal(plain.multiply(x), F.linear(x, plain.quantized.dequantize().bfloat16()))
    assert torch.equal(Scaled(plain, torch.full((64,), 2.0)).multiply(x), plain.multiply(x / 2))


def test_products_keep_their_weights_so_that_no_other_can_take_the_place_of_one():
    """A weight is known by its id, which Python gives to the next tensor once the weight is gone."""
    w = random(16, 64)
    kept = weakref.ref(w)
    multiply = Products([(w, Plain(quantize(w, 2)))])
    del w
    assert kept() is not None and id(kept()) in multiply.matrices


@pytest.mark.parametrize("make", [
    lambda w: Int8Weights(quantize(w)), lambda w: Int8Both(quantize(w)), lambda w: Plain(quantize(w, 4, 32)),
    lambda w: Int4Weights(quantize(w, 4, 32, "minimum")), lambda w: Int4Words(quantize(w, 4, 32, "minimum")),
    lambda w: Grouped(quantize(w, 4, 32, "minimum")),
], ids=["int8", "int8 x int8", "plain", "int4", "int4 words", "int4 x int8"])  # fmt: skip
@pytest.mark.parametrize("rows", [1, 2])
def test_a_compiler_sees_them_whole(make, rows):
    """fullgraph raises where a graph would break."""
    w, x = random(16, 64), random(rows, 64, seed=1)
    multiply = Products([(w, make(w))])
    seen = multiply.compiled(F.linear)
    torch._dynamo.reset()  # which else counts these as one function, compiled too often
    compiled = torch.compile(lambda x: seen(x, w), fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(x), multiply(x, w))


@torch.no_grad()
def logits(decoder: Decoder, make) -> Tensor:
    """Of three tokens, all matrices of the layers as `make` rounds them."""
    weights = [module.weight for module in decoder.layers.modules() if isinstance(module, nn.Linear)]
    c, kernels = decoder.config, Kernels(multiply=Products((w, make(w)) for w in weights))
    segment = Segment(torch.arange(3), ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float32))
    return decoder.logits(decoder(torch.tensor([5, 80, 3]), [segment], kernels=kernels).last)


def test_a_decoder_computes_with_them():
    """Packed weights as their plain form, integers times integers close to it, and 4 bits further off than 8."""
    decoder = Decoder.from_transformers(tiny().float())
    eight, four = (lambda w: quantize(w)), (lambda w: quantize(w, 4, 32, "minimum"))
    exact = logits(decoder, lambda w: Identity(w))
    plain8, plain4 = (logits(decoder, lambda w, make=make: Plain(make(w))) for make in (eight, four))
    torch.testing.assert_close(logits(decoder, lambda w: Int8Weights(eight(w))), plain8, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(decoder, lambda w: Int4Weights(four(w))), plain4, atol=1e-4, rtol=1e-4)
    off8, off4 = ((plain - exact).square().mean().sqrt() for plain in (plain8, plain4))
    assert 0 < off8 < off4 / 5
    for make in (lambda w: Int8Both(eight(w)), lambda w: MixedProduct(w, 1.5)):
        assert 0 < (logits(decoder, make) - exact).square().mean().sqrt() < off4 / 2


class Identity(Matrix):
    """A weight that nobody rounded."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def of(weight: Tensor, *options) -> Integers:
    return quantize(weight, *options)


@pytest.mark.parametrize("make, sentence", [
    (lambda: Int8Weights(of(random(4, 32), 4)), r'the int8 kernels take quantize\(weight, 8, "row", "absmax"\)'),
    (lambda: Int8Weights(of(random(4, 32), 8, 16)), "the int8 kernels take"),
    (lambda: Int8Both(of(random(4, 32), 8, "row", "minimum")), "for others use Plain"),
    (lambda: Int8Both(of(random(4, 32), 8, "row", "zero_point")), "for others use Plain"),
    (lambda: Int8Both(of(random(2, 4, 32), 8)), "of a matrix"),
    (lambda: Int4Weights(of(random(17, 32), 4, 32, "minimum")), "rows in multiples of 16 and a .*, not 17 rows"),
    (lambda: Int4Weights(of(random(16, 32), 4, 16, "minimum")), "4 bits in groups of 16; use Plain"),
    (lambda: Int4Weights(of(random(16, 32), 4, 32, "absmax")), "the int4 kernel takes quantize"),
    (lambda: Int4Weights(of(random(16, 32), 3, 32, "minimum")), "3 bits in groups of 32"),
    (lambda: Int4Weights(of(random(2, 16, 32), 4, 32, "minimum")), "of a matrix"),
    (lambda: Int8Weights(of(random(16, 32).double(), 8)), "not torch.float64; use Plain"),
    (lambda: Int4Weights(on_meta(of(random(16, 32), 4, 32, "minimum"))), "the int4 kernel is one of the CPU"),
])  # fmt: skip
def test_what_a_kernel_cannot_take_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def on_meta(quantized: Integers) -> Integers:
    return Integers(quantized.shape, quantized.dtype, quantized.codes.to("meta"), quantized.grid)


def test_a_compiler_gets_the_form_that_is_made_for_it():
    class Two(Identity):
        def traced(self, x: Tensor) -> Tensor:
            return 2 * self.multiply(x)

    w, x = random(16, 64), random(1, 64, seed=1)
    multiply = Products([(w, Two(w))])
    assert torch.equal(multiply.compiled(F.linear)(x, w), 2 * multiply(x, w))
