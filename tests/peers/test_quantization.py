"""Our formats and products against those of torch, and of four libraries where they are installed."""

import pytest
import torch
from support.toys import linear_of
from torch import Tensor, nn
from torch.ao.quantization import PerChannelMinMaxObserver

from lessons_lib.models import ModelUnavailable, tiny
from lessons_lib.models.libraries import by_library, bytes_held
from lessons_lib.quantization.floats import codebook, quantize_fp8, quantize_nf4
from lessons_lib.quantization.formats import relative_error
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import LLMInt8Linear, W8A8Linear


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


W, X = random(64, 128), random(5, 128, seed=1)


def converted(torchao, config) -> nn.Sequential:
    """A linear layer with W, quantized by torchao."""
    network = linear_of(W)
    torchao.quantize_(network, config)
    return network


def test_the_levels_of_nf4_are_bitsandbytes(bitsandbytes):
    theirs = bitsandbytes.get_4bit_type("nf4", device="cpu")
    torch.testing.assert_close(theirs.double(), codebook(), rtol=0, atol=3e-7)


def test_nf4_rounds_as_bitsandbytes_does(bitsandbytes):
    codes, state = bitsandbytes.quantize_4bit(W, blocksize=64, quant_type="nf4")
    theirs = bitsandbytes.dequantize_4bit(codes, state)
    torch.testing.assert_close(theirs, quantize_nf4(W, 64, double=False).dequantize(), rtol=0, atol=2e-6)


def test_double_scales_cost_as_little_as_bitsandbytes_in_8_bit_floats(bitsandbytes):
    codes, state = bitsandbytes.quantize_4bit(W, blocksize=64, quant_type="nf4", compress_statistics=True)
    theirs, ours = bitsandbytes.dequantize_4bit(codes, state), quantize_nf4(W, 64, double=True).dequantize()
    assert relative_error(W, ours) == pytest.approx(relative_error(W, theirs), rel=0.01)


def test_llm_int8_leaves_a_loud_column_wide_as_bitsandbytes_does(bitsandbytes):
    import bitsandbytes as library

    layer = library.nn.Linear8bitLt(128, 64, bias=False, has_fp16_weights=False, threshold=6.0)
    layer.load_state_dict({"weight": W.clone()})
    x = X.clone()
    x[:, 7] *= 30
    with torch.no_grad():
        theirs = layer.to("cpu")(x.half()).float()
    ours, right, plain = LLMInt8Linear(W)(x), x @ W.T, LLMInt8Linear(W, torch.inf)(x)
    assert relative_error(right, ours) < 0.01 and relative_error(right, theirs) < 0.01 < relative_error(right, plain)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_zero_points_and_their_levels_are_torchs_own(bits):
    """torch's observer finds scales and zero points, its fake quantization rounds with them."""
    x, most = W + torch.linspace(-2, 2, 64)[:, None], 2**bits - 1
    observer = PerChannelMinMaxObserver(0, torch.quint8, torch.per_channel_affine, quant_min=0, quant_max=most)
    observer(x)
    scales, zeros = observer.calculate_qparams()
    theirs = torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, 0, most)
    torch.testing.assert_close(quantize(x, bits, "row", "zero_point", scale_dtype=torch.float32).dequantize(), theirs)


def test_8_bits_of_weights_are_within_a_level_of_torchaos(torchao):
    """torchao spreads 256 levels over twice the largest value, 127.5 a side, ours are 127 a side and zero."""
    network, ours = converted(torchao, torchao.Int8WeightOnlyConfig()), quantize(W, 8, scale_dtype=torch.float32)
    theirs = network[0].weight.dequantize()
    assert ((theirs - ours.dequantize()).abs() <= 1.01 * ours.grid.scales).all()
    assert relative_error(W, theirs) == pytest.approx(relative_error(W, ours.dequantize()), rel=0.02)
    torch.testing.assert_close(network(X), X @ theirs.T)


def test_8_bits_of_weights_are_quantos_bit_for_bit(quanto):
    scales = quanto.AbsmaxOptimizer()(W, quanto.qint8, axis=0)
    theirs = quanto.quantize_weight(W, quanto.qint8, axis=0, scale=scales)
    assert torch.equal(theirs.dequantize(), quantize(W, 8, scale_dtype=torch.float32).dequantize())


def test_4_bits_in_groups_are_quantos_bit_for_bit(quanto):
    scales, shifts = quanto.MaxOptimizer()(W, quanto.qint4, axis=0, group_size=32)
    theirs = quanto.quantize_weight(W, quanto.qint4, axis=0, scale=scales, shift=shifts, group_size=32)
    assert torch.equal(theirs.dequantize(), quantize(W, 4, 32, "affine", torch.float32).dequantize())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_groups_with_a_minimum_are_hqqs_before_it_looks_for_better_ones(hqq, bits):
    settings = {"nbits": bits, "group_size": 32, "axis": 1, "device": "cpu", "compute_dtype": torch.float32}
    plain, better = (hqq.dequantize(*hqq.quantize(W, optimize=optimize, **settings)) for optimize in (False, True))
    ours = quantize(W, bits, 32, "affine", torch.float32).dequantize()
    assert relative_error(W, plain) == pytest.approx(relative_error(W, ours), rel=1e-4)
    assert relative_error(W, better) <= relative_error(W, ours)


def test_rounded_activations_cost_what_they_cost_with_torchao(torchao):
    network = converted(torchao, torchao.Int8DynamicActivationInt8WeightConfig())
    ours, right = W8A8Linear(quantize(W, 8)), X @ W.T
    assert relative_error(right, ours(X)) == pytest.approx(relative_error(right, network(X)), rel=0.4)
    assert relative_error(right, W8A8Linear(quantize(W, 8), terms=2)(X)) < relative_error(right, network(X))


def test_fp8_is_torchaos_bit_for_bit(torchao):
    network = converted(torchao, torchao.Float8WeightOnlyConfig())
    assert torch.equal(network[0].weight.dequantize(), quantize_fp8(W).dequantize())


def test_groups_of_4_bits_err_as_much_as_torchaos(torchao):
    config = torchao.IntxWeightOnlyConfig(torch.int4, granularity=torchao.PerGroup(32))
    theirs = converted(torchao, config)[0].weight.dequantize()
    assert relative_error(W, quantize(W, 4, 32).dequantize()) == pytest.approx(relative_error(W, theirs), rel=0.05)


@pytest.mark.parametrize("name", ["torchao int8", "torchao int8 dynamic", "bitsandbytes int8", "bitsandbytes nf4"])
def test_a_model_runs_quantized_by_a_library(name, tmp_path):
    pytest.importorskip(name.split()[0], reason=f"{name.split()[0]} is missing; install lessons_lib[quantization]")
    network = tiny(dtype=torch.float32, width=64)
    network.save_pretrained(tmp_path)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        right, found = network(ids).logits, by_library(name, torch.float32, tmp_path)(ids).logits
    assert 0 < relative_error(right, found) < (0.7 if "nf4" in name else 0.1)


@pytest.mark.parametrize("name, each", [("torchao int8", 1), ("bitsandbytes int8", 1), ("bitsandbytes nf4", 0.5)])
def test_of_a_librarys_model_codes_and_scales_are_counted(name, each, tmp_path):
    pytest.importorskip(name.split()[0], reason=f"{name.split()[0]} is missing; install lessons_lib[quantization]")
    network = tiny(dtype=torch.float32, width=64)
    network.save_pretrained(tmp_path)
    rounded = sum(m.weight.numel() for m in network.model.modules() if isinstance(m, torch.nn.Linear))
    wide = bytes_held(network) - 4 * rounded
    assert each < (bytes_held(by_library(name, torch.float32, tmp_path)) - wide) / rounded < each + 0.1


def test_a_missing_library_and_an_unknown_name_are_refused(monkeypatch):
    monkeypatch.setattr("lessons_lib.models.libraries.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match=r"torchao int8 needs torchao, which is missing; install lessons_lib\["):
        by_library("torchao int8", torch.float32, "here")
    with pytest.raises(ValueError, match="there is no 'gptq'; choose one of torchao int8"):
        by_library("gptq", torch.float32, "here")
