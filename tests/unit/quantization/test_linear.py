"""Each quantized layer against the matmul with its rounded weight; copied, stored and restored; what it cannot take."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.rounded import DTYPES, ROUNDING, compiled, random
from torch import Tensor

from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.quantization import cpu
from lessons_lib.quantization.cpu.linear import (
    InterleavedW4A16Linear,
    OneDNNW8A8Linear,
    PackedW4A16Linear,
    PackedW8A8Linear,
    PackedW8A16Linear,
)
from lessons_lib.quantization.floats import quantize_fp8, quantize_nf4
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import (
    DequantizedLinear,
    FakeQuantLinear,
    LLMInt8Linear,
    OutlierColumns,
    ScaledLinear,
    W4A8Linear,
    W4A16Linear,
    W8A8Linear,
    W8A16Linear,
    integer_matmul,
    multiply_rounded,
    outlier_columns,
    round_groups,
    round_rows,
    rounded_values,
    sharing_copy,
    tall_matmul,
)
from lessons_lib.quantization.model import swapped

LAYERS = {
    "W8A16": lambda w: W8A16Linear(quantize(w)),
    "W8A16 on a CPU": lambda w: PackedW8A16Linear(quantize(w)),
    "W4A16": lambda w: W4A16Linear(quantize(w, 4, 32, "affine")),
    "W4A16 on a CPU": lambda w: PackedW4A16Linear(quantize(w, 4, 32, "affine")),
    "W4A16 on a CPU without AVX512": lambda w: InterleavedW4A16Linear(quantize(w, 4, 32, "affine")),
    "W8A8": lambda w: W8A8Linear(quantize(w)),
    "W8A8 with VNNI": lambda w: OneDNNW8A8Linear(quantize(w)),
    "W8A8 without VNNI": lambda w: PackedW8A8Linear(quantize(w)),
    "W4A8": lambda w: W4A8Linear(quantize(w, 4, 32, "affine")),
    "LLM.int8": lambda w: LLMInt8Linear(w, 1.5),
    "outlier columns": lambda w: OutlierColumns(W8A8Linear(quantize(w)), w, torch.tensor([3, 5])),
    "scaled": lambda w: ScaledLinear(W8A16Linear(quantize(w)), w[0].abs() + 1),
    "NF4": lambda w: DequantizedLinear(quantize_nf4(w, 32)),
    "FP8": lambda w: DequantizedLinear(quantize_fp8(w)),
    "int3": lambda w: DequantizedLinear(quantize(w, 3, 32, "zero_point")),
    "values": lambda w: FakeQuantLinear(quantize(w, 3, 32)),
}

each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("kind, how", [
    (W8A16Linear, (8,)), (W4A16Linear, (4, 32, "affine")), (W4A16Linear, (4, 64, "affine")),
    (DequantizedLinear, (3, 32, "zero_point")), (FakeQuantLinear, (2, 32)),
])  # fmt: skip
def test_weight_only_layers_equal_the_matmul_with_the_rounded_weight_in_float64(kind, how, rows):
    weight, x = random(48, 128, dtype=torch.float64) + 0.3, random(rows, 128, seed=1, dtype=torch.float64)
    quantized = quantize(weight, *how)
    torch.testing.assert_close(kind(quantized)(x), x @ quantized.dequantize().T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_layers_that_round_activations_equal_the_matmul_of_both_rounded_in_float64(rows):
    weight, x = random(48, 128, dtype=torch.float64) + 0.3, random(rows, 128, seed=1, dtype=torch.float64)
    eight, four = quantize(weight), quantize(weight, 4, 32, "affine")
    for terms in (1, 2):
        right = rounded_values(x, terms) @ eight.dequantize().T
        for kind in (W8A8Linear, OneDNNW8A8Linear, PackedW8A8Linear):
            torch.testing.assert_close(kind(eight, terms)(x), right, rtol=0, atol=1e-5)
    torch.testing.assert_close(W4A8Linear(four)(x), round_groups(x) @ four.dequantize().T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("kind", [W8A8Linear, OneDNNW8A8Linear, PackedW8A8Linear])
def test_w8a8_is_off_by_half_a_step_of_x_at_most(kind, dtype, rows):
    quantized, x = quantize(random(33, 96, dtype=dtype), 8, scale_dtype=dtype), random(rows, 96, seed=1, dtype=dtype)
    right = x.double() @ quantized.dequantize().double().T
    out = kind(quantized)(x)
    half = x.double().abs().amax(1, True) / 254 * quantized.dequantize().double().abs().sum(1)
    size = x.double().abs() @ quantized.dequantize().double().abs().T
    assert out.dtype == dtype and ((out.double() - right).abs() <= half + ROUNDING[dtype] * size).all()
    assert (out.double() - right).abs().max() > 0


@each_layer
def test_a_deep_copy_computes_the_same_and_shares_nothing(make):
    layer, x = make(random(16, 64)), random(2, 64, seed=1)
    before, other = layer(x), copy.deepcopy(layer)
    assert torch.equal(other(x), before) and other.nbytes == layer.nbytes
    for buffer in layer.buffers():
        buffer.zero_()
    assert torch.equal(other(x), before) and not torch.equal(layer(x), before)


@each_layer
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_holds_all_that_a_layer_computes_with(make, assign):
    layer, other, x = make(random(16, 64)), make(random(16, 64, seed=2)), random(2, 64, seed=1)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict(), assign=assign)
    assert torch.equal(other(x), layer(x)) and other.nbytes == layer.nbytes


@each_layer
def test_a_stored_layer_comes_back_as_it_was(make):
    layer, x, file = make(random(16, 64)), random(2, 64, seed=1), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    back = torch.load(file, weights_only=False)
    assert torch.equal(back(x), layer(x)) and back.nbytes == layer.nbytes


@pytest.mark.parametrize("name", ["W8A16 on a CPU", "W4A16 on a CPU without AVX512", "W8A8 without VNNI"])
def test_codes_move_to_a_device_in_every_form(name):
    layer = LAYERS[name](random(16, 64)).to("meta")
    assert layer.codes.is_meta and layer.packed.is_meta


@pytest.mark.parametrize("kind", [W8A16Linear, PackedW8A16Linear])
def test_sums_of_codes_that_float16_cannot_hold_are_scaled_in_time(kind):
    """127 · 16 · 64 is 130,048, and 0.1 · 16 · 64 is 102.4."""
    layer, x = kind(quantize(torch.full((16, 64), 0.1).half())), torch.full((17, 64), 16.0).half()
    for one in (layer, compiled(layer)):
        torch.testing.assert_close(one(x), torch.full((17, 16), 102.4).half(), rtol=0.01, atol=0)


@each_layer
def test_a_sharing_copy_holds_the_very_tensors(make):
    layer, x = make(random(16, 64)), random(2, 64, seed=1)
    other = sharing_copy(layer)
    assert other is not layer and torch.equal(other(x), layer(x))
    pointers = [{t.data_ptr() for m in of.modules() for t in vars(m).values() if isinstance(t, Tensor)}
                | {buffer.data_ptr() for buffer in of.buffers()} for of in (layer, other)]  # fmt: skip
    assert pointers[0] == pointers[1] != set()


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("NF4", "FP8", "int3", "LLM.int8")])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_compiler_sees_them_whole(name, rows):
    if name == "W8A8 with VNNI" and not cpu.integer_units():
        pytest.skip("oneDNN's compiled operator saturates its sums on a CPU without VNNI")
    layer, x = LAYERS[name](random(16, 64)), random(rows, 64, seed=1)
    torch.testing.assert_close(compiled(layer)(x), layer(x))


@pytest.mark.parametrize("make", [
    lambda w: quantize(w, 3, 32), lambda w: quantize(w, 8, "tensor", "zero_point"), lambda w: quantize_nf4(w, 32),
    lambda w: quantize_fp8(w, "e5m2"),
], ids=["int3", "zero point", "nf4", "fp8"])  # fmt: skip
@DTYPES
def test_any_format_is_turned_back_into_its_values(make, dtype):
    quantized, x = make(random(8, 64, dtype=dtype)), random(2, 64, seed=1, dtype=dtype)
    for layer in (DequantizedLinear(quantized), FakeQuantLinear(quantized)):
        assert torch.equal(layer(x), F.linear(x, quantized.dequantize()))
    assert DequantizedLinear(quantized).nbytes == quantized.nbytes == FakeQuantLinear(quantized).nbytes


def test_a_strided_x_is_read_as_it_stands():
    w, x = random(16, 64), random(64, 3, seed=1).T
    for make in LAYERS.values():
        layer = make(w)
        torch.testing.assert_close(layer(x), layer(x.contiguous()))


def test_a_scaled_layer_divides_its_input():
    w, x, s = random(16, 64), random(2, 64, seed=1), random(64, seed=2).abs() + 0.5
    layer = ScaledLinear(W8A16Linear(quantize(w * s, scale_dtype=torch.float32)), s)
    assert torch.equal(layer(x), layer.linear(x / s))
    assert (layer(x) - x @ w.T).abs().max() < 0.3 < (layer.linear(x) - x @ w.T).abs().max()


def test_results_have_the_dtype_of_x_whatever_the_weights_is():
    x = random(2, 64, seed=1, dtype=torch.bfloat16)
    for name, make in LAYERS.items():
        assert make(random(16, 64))(x).dtype == torch.bfloat16, name


@torch.no_grad()
def test_a_decoder_computes_with_them():
    """Packed weights as their plain form, integers times integers close to it, and 4 bits further off than 8."""
    decoder, ids = Decoder.from_transformers(tiny(dtype=torch.float32)), [5, 80, 3]

    def logits(make) -> Tensor:
        return swapped(decoder, lambda name, w: make(w) if name[1] != "head" else None).read(ids)

    eight, four = (lambda w: quantize(w)), (lambda w: quantize(w, 4, 32, "affine"))
    exact = decoder.read(ids)
    plain8, plain4 = (logits(lambda w, of=of: DequantizedLinear(of(w))) for of in (eight, four))
    torch.testing.assert_close(logits(lambda w: PackedW8A16Linear(eight(w))), plain8, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(lambda w: PackedW4A16Linear(four(w))), plain4, atol=1e-4, rtol=1e-4)
    off8, off4 = ((plain - exact).square().mean().sqrt() for plain in (plain8, plain4))
    assert 0 < off8 < off4 / 5
    for make in (lambda w: W8A8Linear(eight(w)), lambda w: LLMInt8Linear(w, 1.5)):
        assert 0 < (logits(make) - exact).square().mean().sqrt() < off4 / 2


W8 = r'layers of 8 bits take quantize\(weight, 8, "row", "absmax"\)'


@pytest.mark.parametrize("kind, how, sentence", [
    (W8A16Linear, (4,), W8), (PackedW8A16Linear, (8, 16), W8), (W8A8Linear, (8, "row", "affine"), W8),
    (W4A16Linear, (3, 32, "affine"), "not 3 bits in groups of 32"),
    (PackedW4A16Linear, (4, 16, "affine"), "32 or 64 or 128 or 256.* not 4 bits in groups of 16"),
    (InterleavedW4A16Linear, (4, 64, "affine"), "in groups of 64"),
])  # fmt: skip
def test_what_a_layer_cannot_take_is_refused(kind, how, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(quantize(random(16, 64), *how))


WEIGHT, INPUT = torch.tensor([[1.0, 1.0, 0.001]]), torch.tensor([[0.05, -0.04, 60.0]])


@given(rows=st.integers(1, 5), columns=st.integers(1, 40), out=st.integers(1, 20), seed=st.integers(0, 99))
def test_integer_matmuls_are_exact_for_any_size(rows, columns, out, seed):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8, generator=generator) for n in (rows, out))
    assert torch.equal(integer_matmul(x, w), (x.long() @ w.long().T).int())


@pytest.mark.parametrize("rows", [1, 16, 31, 32, 33])
def test_the_product_of_a_gpus_tensor_cores_is_given_rows_enough_and_gives_back_what_was_asked(rows, monkeypatch):
    generator, taken = torch.Generator().manual_seed(rows), []
    x, w = (torch.randint(-127, 128, (n, 24), dtype=torch.int8, generator=generator) for n in (rows, 16))
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: taken.append(len(a)) or product(a, b))
    assert torch.equal(tall_matmul(x, w), (x.long() @ w.long().T).int()) and taken == [max(rows, 32)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
@pytest.mark.parametrize("columns, out", [(24, 16), (23, 16), (24, 15)])
def test_integer_matmuls_are_exact_on_a_gpu(columns, out):
    x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8) for n in (5, out))
    assert torch.equal(integer_matmul(x.cuda(), w.cuda()).cpu(), (x.long() @ w.long().T).int())


def test_sums_that_float32_would_round_are_exact():
    x = torch.full((1, 1101), 127, dtype=torch.int8)
    assert integer_matmul(x, x).item() == 127 * 127 * 1101 > 2**24


def test_each_row_has_its_own_scale():
    levels, scales = round_rows(torch.tensor([[0.05, -0.04], [100.0, 50.0], [0.0, 0.0]]))
    assert levels.tolist() == [[127, -102], [127, 64], [0, 0]]
    assert scales[:, 0].tolist() == pytest.approx([0.05 / 127, 100 / 127, 1.0])


@given(seed=st.integers(0, 99), exponent=st.integers(-20, 20))
def test_a_product_is_off_by_no_more_than_its_roundings(seed, exponent):
    """|y - x wᵀ| <= Σ |x| s_w/2 + |w| s_x/2 + s_x s_w/4."""
    x, w = (
        random(3, 24, seed=seed, dtype=torch.float64) * 10.0**exponent,
        random(5, 24, seed=seed + 100, dtype=torch.float64),
    )
    levels, scales = round_rows(w)
    _, s = round_rows(x)
    error = (multiply_rounded(x, levels, scales[:, 0]) - x @ w.T).abs()
    most = x.abs().sum(1, True) * scales.T / 2 + s / 2 * w.abs().sum(1) + 24 * s * scales.T / 4
    assert (error <= most * 1.000001).all()


def test_an_outlier_takes_all_levels_for_itself_unless_it_is_left_out():
    assert LLMInt8Linear(WEIGHT, float("inf"))(INPUT).item() == 0.0  # 0.07 is right
    assert LLMInt8Linear(WEIGHT, 6.0)(INPUT).item() == pytest.approx(0.06984, abs=1e-5)


def test_columns_with_any_value_beyond_the_threshold_are_outliers():
    x = torch.tensor([[[6.0, -6.1, 0.0]], [[1.0, 2.0, 7.0]]])
    assert outlier_columns(x).tolist() == [False, True, True]


def test_threshold_zero_is_the_plain_product_and_infinity_the_rounded_one():
    x, w = random(4, 32, dtype=torch.float64), random(8, 32, seed=1, dtype=torch.float64)
    assert torch.equal(LLMInt8Linear(w, 0.0)(x), F.linear(x, w))
    levels, scales = round_rows(w)
    assert torch.equal(LLMInt8Linear(w, float("inf"))(x), multiply_rounded(x, levels, scales[:, 0]))


@pytest.mark.parametrize("seed", range(5))
def test_leaving_one_loud_column_out_brings_most_precision_back(seed):
    x, w = random(16, 64, seed=seed, dtype=torch.float64), random(32, 64, seed=seed + 100, dtype=torch.float64)
    x[:, 5] *= 60
    plain, mixed = ((LLMInt8Linear(w, t)(x) - x @ w.T).square().mean() for t in (float("inf"), 6.0))
    assert mixed < plain / 20


@pytest.mark.parametrize("terms", [1, 2])
def test_columns_known_beforehand_leave_finer_steps_to_the_others(terms):
    w, x = random(16, 64, dtype=torch.float64), random(3, 64, seed=1, dtype=torch.float64)
    layer = W8A8Linear(quantize(w, 8, "row"), terms)
    x[:, [3, 5]] *= 60
    off = [(one(x) - x @ w.T).abs().max() for one in (layer, OutlierColumns(layer, w, torch.tensor([3, 5])))]
    assert off[1] < off[0] / 2


def test_a_second_term_leaves_a_254th_of_what_the_first_leaves():
    x = random(64, 32, dtype=torch.float64)
    steps = x.abs().amax(-1, True) / 127
    for terms, part in ((1, 1), (2, 254)):
        assert ((rounded_values(x, terms) - x).abs() <= 0.501 * steps / part).all()


def test_each_group_of_inputs_has_its_own_scale():
    x = torch.zeros(2, 64)
    x[0, :2], x[0, 32], x[1, 63] = torch.tensor([1.27, 0.014]), 1000.0, -0.5
    expected = x.clone()
    expected[0, 1] = 0.01
    torch.testing.assert_close(round_groups(x), expected)
    assert round_groups(x.double()).dtype == torch.float64


def test_a_loud_input_spoils_its_own_group_alone():
    """Negative control: with one scale a row it spoils all of them."""
    x, weight = random(1, 640), random(16, 640, seed=1)
    x[0, 0] = 1000.0
    weight[:, :32] = 0
    off = lambda layer: (layer(x) - x @ weight.T).abs().max()  # noqa: E731
    grouped_bits, row_bits = W4A8Linear(quantize(weight, 8, 32, "affine")), W8A8Linear(quantize(weight, 8))
    assert 20 * off(grouped_bits) < off(row_bits)
