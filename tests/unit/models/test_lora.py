"""Adapters begin as nothing, belong to the layers' matrices alone, survive a copy, and merge into what they compute."""

import copy

import pytest
import torch
from torch import nn

from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.lora import LoRALinear, adapted, adapters, merge_in_place
from lessons_lib.quantization.calibration import linears
from lessons_lib.quantization.model import quantize_model

IDS = [5, 80, 3, 3, 61]


@pytest.fixture
def decoder() -> Decoder:
    return Decoder.from_transformers(tiny())


def trained(decoder: Decoder) -> Decoder:
    model, generator = adapted(decoder, rank=3, alpha=6.0), torch.Generator().manual_seed(0)
    for name, weight in adapters(model).items():
        if name.endswith(".B"):
            weight.data.normal_(generator=generator)
    return model


@torch.no_grad()
def test_adapters_change_nothing_at_first_and_merge_into_what_they_compute(decoder):
    plain = decoder.read(IDS)
    assert torch.equal(adapted(decoder, rank=3, alpha=6.0).read(IDS), plain)
    model = trained(decoder)
    beside = model.read(IDS)
    assert (beside - plain).abs().max() > 0.1 and torch.equal(decoder.read(IDS), plain)
    merge_in_place(model)
    torch.testing.assert_close(decoder.read(IDS), beside)  # its weights are the adapted model's
    torch.testing.assert_close(model.read(IDS), beside)  # and there the adapters add no more


@torch.no_grad()
def test_a_deep_copy_keeps_its_adapters_and_shares_nothing(decoder):
    model = trained(decoder)
    other = copy.deepcopy(model)
    assert torch.equal(other.read(IDS), model.read(IDS))
    adapters(other)["layers.0.qkv.B"].zero_()
    assert not torch.equal(other.read(IDS), model.read(IDS))


@torch.no_grad()
def test_an_adapter_adds_alpha_over_r_times_b_times_a(decoder):
    layer, x = trained(decoder).layers[0].qkv, torch.ones(1, 32).double()
    torch.testing.assert_close(layer(x), x @ (layer.linear.weight + 2.0 * layer.B @ layer.A).T)


def test_every_matrix_of_every_layer_has_an_adapter_and_nothing_else(decoder):
    model = adapted(decoder, rank=3, alpha=6.0)
    inside = linears(model, head=False)
    assert len(inside) == 8 and all(isinstance(layer, LoRALinear) for layer in inside.values())
    assert type(model.head) is nn.Linear and {len(layer.A) for layer in inside.values()} == {3}
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trainable == set(adapters(model))
    assert inside[0, "qkv"].linear.weight is decoder.layers[0].qkv.weight


def test_a_quantized_decoder_is_refused(decoder):
    with pytest.raises(ValueError, match="adapters are for full weights; adapt the decoder"):
        adapted(quantize_model(decoder, "W8A16"), rank=3, alpha=6.0)


def test_the_start_depends_on_the_seed_alone(decoder):
    first, again, other = (adapted(decoder, 3, 6.0, seed).layers[0].qkv.A for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
