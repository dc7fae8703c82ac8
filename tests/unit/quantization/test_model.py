"""Decoders in few bits against the same decoder with its weights' rounded values, in float64 where that can be."""

import pytest
import torch
from support.rounded import WINDOWS, decoder, logits, loud, off, with_weights
from torch import Tensor

from lessons_lib.models.decoder import Decoder
from lessons_lib.quantization import cpu
from lessons_lib.quantization.calibration import HEAD, MATRICES, linears
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.linear import (
    InterleavedW4A16Linear,
    NativeW4A8Linear,
    OneDNNW8A8Linear,
    PackedW4A16Linear,
    PackedW8A8Linear,
    PackedW8A16Linear,
)
from lessons_lib.quantization.formats import rounding
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import (
    DequantizedLinear,
    LLMInt8Linear,
    QuantizedLinear,
    W4A8Linear,
    round_groups,
    rounded_values,
)
from lessons_lib.quantization.model import PLAIN, W8A8Options, bytes_kept, bytes_read, quantize_model, swapped

W8A8 = OneDNNW8A8Linear if cpu.integer_units() else PackedW8A8Linear

W4A16 = PackedW4A16Linear if cpu.packed_kernels() else InterleavedW4A16Linear


@pytest.mark.parametrize("name", ["W8A16", "W4A16", "int3 g16", "nf4 g32", "fp8 e5m2", "int2 g32 absmax"])
@pytest.mark.parametrize("values", [True, False])
def test_rounded_weights_alone_compute_what_their_values_do(name, values):
    whole = decoder()
    to_format = rounding({"W8A16": "int8", "W4A16": "int4 g32"}.get(name, name))

    def change(place, weight):
        return (rounding("int8") if place[1] == HEAD else to_format)(weight).dequantize()

    found = quantize_model(whole, name, values=values)
    torch.testing.assert_close(logits(found), logits(with_weights(whole, change)), rtol=0, atol=1e-10)
    assert 0 < off(found, logits(whole)) < 2


def test_packed_kernels_of_int4_in_fp32_compute_what_its_values_do():
    """Whose perplexity stands for theirs: `bench` reads the long text with values."""
    whole = decoder(torch.float32, width=64)
    packed, values = (logits(quantize_model(whole, "W4A16", values=of)) for of in (False, True))
    assert 0 < (packed - values).norm() / values.norm() < 1e-5


def test_a_head_can_stay_as_it_is_or_take_a_format_of_its_own():
    whole = decoder()
    kept = quantize_model(whole, "W4A16", head=None)
    assert kept.head.weight is whole.head.weight and len(quantized_layers(kept)) == 8
    four = quantize_model(whole, "W4A16", head="int4 g32")
    assert bytes_read(four) < bytes_read(quantize_model(whole, "W4A16")) < bytes_read(kept)


def test_nothing_wide_is_left_but_the_table_of_a_tied_head():
    whole = decoder(torch.float32)
    for name in ("W8A8", "W8A16", "W4A16"):
        found = quantize_model(whole, name)
        assert not any(isinstance(module, torch.nn.Linear) for module in found.modules())
        assert found.embedding.weight is whole.embedding.weight and found.norm is whole.norm
        assert {name for name, _ in found.named_parameters()} == {
            name for name, _ in whole.named_parameters() if "norm" in name or name == "embedding.weight"
        }
        assert not any(part.is_meta for part in (*found.parameters(), *found.buffers()))
    assert all(type(linear) is torch.nn.Linear for linear in linears(whole).values())


@pytest.mark.parametrize("name, bits", [("W8A16", 8), ("W4A16", 4), ("W8A8", 8)])
def test_bytes_read_are_codes_and_scales_and_bytes_kept_the_rest_beside(name, bits):
    whole = decoder(torch.float32, width=64, heads=4)
    found = quantize_model(whole, name)
    weights = {place: linear.weight.numel() for place, linear in linears(whole).items()}
    rows = sum(linear.weight.shape[0] for linear in linears(whole).values())
    head = weights[2, HEAD]
    inside = sum(weights.values()) - head
    groups = inside // 32 * 4 if name == "W4A16" else 0  # scale and minimum in 16 bits
    wide = groups if name == "W4A16" and not cpu.packed_kernels() else 2 * groups
    scales = 97 if name == "W4A16" else rows
    zeros = rows if name == "W8A8" and cpu.integer_units() else 0  # which oneDNN wants beside the scales
    assert bytes_read(found) == inside * bits // 8 + head + wide + 4 * (scales + zeros)
    others = [whole.norm, whole.cos, whole.sin, whole.embedding.weight]
    others += [norm for layer in whole.layers for norm in (layer.attention_norm, layer.mlp_norm)]
    assert bytes_kept(found) == bytes_read(found) + sum(x.nbytes for x in others)
    assert bytes_kept(whole) == sum(weights.values()) * 4 - head * 4 + sum(x.nbytes for x in others)


def test_the_full_weights_of_a_tied_head_are_kept_once():
    whole = decoder(torch.float32)
    found = quantize_model(whole, "llm.int8")
    assert found.head.weight.data_ptr() == found.embedding.weight.data_ptr()
    norms = [norm for layer in whole.layers for norm in (layer.attention_norm, layer.mlp_norm)]
    others = sum(part.nbytes for part in (*norms, whole.norm, whole.cos, whole.sin))
    assert bytes_kept(found) == bytes_read(found) + others


def quantized_layers(of: Decoder) -> list:
    return [layer for layer in linears(of).values() if isinstance(layer, QuantizedLinear)]


class ByHand(QuantizedLinear):
    """y = multiply(x)."""

    def __init__(self, weight: Tensor, multiply):
        super().__init__(weight.shape)
        self.multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x)


def test_kernels_are_those_of_the_format_and_the_dtype():
    whole = decoder(torch.float32, width=64)
    names = ("W8A8", "W8A16", "W4A16", "W4A8", "llm.int8", "nf4")
    kinds = {name: {type(matrix) for matrix in quantized_layers(quantize_model(whole, name))} for name in names}
    assert kinds["W8A8"] == {W8A8} and kinds["llm.int8"] == {LLMInt8Linear}
    assert kinds["nf4"] == {DequantizedLinear, PackedW8A16Linear} and kinds["W8A16"] == {PackedW8A16Linear}
    assert kinds["W4A8"] == ({W4A8Linear} if native.problem() else {W4A8Linear, NativeW4A8Linear})
    assert kinds["W4A16"] == {PackedW8A16Linear, W4A16}


def test_matrices_without_a_kernel_are_counted_in_one_line_per_model(capsys, monkeypatch):
    quantize_model(decoder(torch.float32, width=64), "W4A16")
    quantize_model(decoder(), "W4A16", values=True)
    assert not capsys.readouterr().err
    slow = "matrices are dequantized at every call, which is slow:"
    quantize_model(decoder(), "W4A16")
    assert capsys.readouterr().err == f"9 of 9 {slow} no kernel on cpu takes their shape and dtype\n"
    monkeypatch.setattr(native, "problem", lambda: "no VNNI")
    quantize_model(decoder(torch.float32), "W4A8")
    assert capsys.readouterr().err == "no VNNI; W4A8 is slow here\n"


def test_4_bits_times_8_are_values_in_groups_times_inputs_in_groups_and_the_head_has_8():
    """In float64, where no kernel of ours multiplies, against products of the rounded values."""
    whole = decoder()

    def by_hand(name, weight):
        values = rounding("int8 g32 affine" if name[1] == HEAD else "int4 g32")(weight).dequantize()
        return ByHand(weight, lambda x: round_groups(x) @ values.T)

    exact = logits(swapped(whole, by_hand))
    assert off(quantize_model(whole, "W4A8"), exact) < 1e-9 < 1e-2 < off(whole, exact)


def test_w8a8_rounds_every_input_and_every_weight():
    """In float64, against products of the rounded values; a matrix has two terms where it is asked to."""
    whole = decoder()

    def by_hand(terms):
        def make(name, weight):
            count, values = terms if name[1] == "down" else 1, quantize(weight, 8).dequantize()
            return ByHand(weight, lambda x: rounded_values(x, count) @ values.T)

        return logits(swapped(whole, make))

    finer = quantize_model(whole, "W8A8", options=W8A8Options({}, {}, {"down": 2}))
    torch.testing.assert_close(logits(finer), by_hand(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(logits(quantize_model(whole, "W8A8")), by_hand(1), rtol=0, atol=1e-6)
    assert (by_hand(1) - by_hand(2)).abs().max() > 1e-3


def test_smoothing_and_wide_columns_help_int8_where_a_few_columns_are_loud():
    right, harsh = logits(decoder()), loud(decoder())
    torch.testing.assert_close(logits(harsh), right, rtol=0, atol=1e-9)
    remedies = {
        "none": PLAIN, "smooth": W8A8Options({"qkv": 0.7, "gate_up": 0.7}, {}, {}),
        "columns": W8A8Options({}, {"qkv": 2, "gate_up": 2, HEAD: 2}, {}), "all": None,
    }  # fmt: skip
    errors = {name: off(quantize_model(harsh, windows=WINDOWS, options=of), right) for name, of in remedies.items()}
    assert errors["none"] > 3 * off(quantize_model(decoder(), options=PLAIN), right)
    assert errors["smooth"] < 0.8 * errors["none"] and errors["columns"] < errors["none"] / 3
    assert errors["all"] < errors["none"] / 2


def test_a_second_term_of_activations_helps_int8_where_they_are_harsh_and_weights_are_not():
    harsh = loud(decoder(), taken_back=False)
    right, everywhere = logits(harsh), dict.fromkeys((*MATRICES, HEAD), 2)
    plain, finer = (off(quantize_model(harsh, options=W8A8Options({}, {}, terms)), right) for terms in ({}, everywhere))
    weights = off(quantize_model(harsh, "W8A16"), right)
    assert finer < 1.1 * weights and plain > 1.3 * finer


def test_without_windows_nothing_is_calibrated():
    whole = decoder()
    found = quantize_model(whole, "W8A8")
    assert {type(layer) for layer in quantized_layers(found)} == {W8A8}
    assert found.layers[0].attention_norm.data_ptr() == whole.layers[0].attention_norm.data_ptr()


@pytest.mark.parametrize("call, sentence", [
    (lambda d: quantize_model(d, "awq int3 g16"), "nothing to calibrate with; pass windows"),
    (lambda d: quantize_model(d, "gptq int3 g16"), "windows of ids to calibrate on; got 'int3 g16' and 0 windows"),
    (lambda d: quantize_model(d, "gptq nf4", windows=WINDOWS), "GPTQ rounds to integers, such as 'int3 g64'"),
    (lambda d: quantize_model(quantize_model(d, "W8A8"), "W4A16"), "quantized already; quantize the one"),
    (lambda d: quantize_model(d.to("meta"), "W4A16"), "rounding runs on cpu or cuda, not on meta"),
    (lambda d: quantize_model(d, "W8A8", options=W8A8Options({}, {"haed": 8})), "no matrix is called 'haed'; choose"),
])  # fmt: skip
def test_what_cannot_be_rounded_is_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(decoder())


@pytest.mark.parametrize("name, long", [("gptq W4A16", "gptq int4 g32"), ("gptq W8A16", "gptq int8")])
def test_gptq_rounds_to_the_formats_of_targets_too(name, long):
    found, expected = (logits(quantize_model(decoder(), of, windows=WINDOWS)) for of in (name, long))
    assert torch.equal(found, expected)


def test_a_weight_that_is_not_finite_is_refused_by_every_format():
    broken = decoder()
    broken.layers[1].down.weight.data[0, 0] = torch.nan
    for name in ("W8A8", "W8A16", "W4A16", "W4A8", "llm.int8", "nf4 g32", "fp8"):
        with pytest.raises(ValueError, match="1 NaN or infinite values"):
            quantize_model(broken, name)
