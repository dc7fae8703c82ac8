"""Adapters begin as nothing, belong to the layers' matrices alone, and merge into what they compute."""

import pytest
import torch

from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.lora import adapted, merged
from lessons_lib.training.loop import read_texts

IDS = [5, 80, 3, 3, 61]


@pytest.fixture
def decoder() -> Decoder:
    return Decoder.from_transformers(tiny())


@torch.no_grad()
def test_adapters_change_nothing_at_first_and_merge_into_what_they_compute(decoder):
    adapters, plain = adapted(decoder, rank=3, alpha=6.0), read_texts(decoder, [IDS])
    assert torch.equal(read_texts(decoder, [IDS], kernels=adapters.kernels()), plain)
    for weight in adapters.B:
        weight.normal_(generator=torch.Generator().manual_seed(0))
    beside, whole = read_texts(decoder, [IDS], kernels=adapters.kernels()), merged(decoder, adapters)
    assert (beside - plain).abs().max() > 0.1
    torch.testing.assert_close(read_texts(whole, [IDS]), beside)
    assert torch.equal(read_texts(decoder, [IDS]), plain)
    assert whole.embedding.weight.data_ptr() == decoder.embedding.weight.data_ptr()


@torch.no_grad()
def test_an_adapter_adds_alpha_over_r_times_b_times_a(decoder):
    adapters, x = adapted(decoder, rank=3, alpha=6.0), torch.ones(1, 32).double()
    weight = decoder.layers[0].qkv.weight
    adapters.B[0].fill_(0.5)
    torch.testing.assert_close(adapters(x, weight), x @ (weight + 2.0 * adapters.B[0] @ adapters.A[0]).T)


def test_every_matrix_of_every_layer_has_an_adapter_and_nothing_else(decoder):
    adapters = adapted(decoder, rank=3, alpha=6.0)
    assert len(adapters.weights) == 4 * decoder.config.num_layers
    assert {a.shape[0] for a in adapters.A} == {3} == {b.shape[1] for b in adapters.B}
    x = torch.ones(1, 32).double()
    assert torch.equal(adapters(x, decoder.head.weight), decoder.score(x))


def test_the_start_depends_on_the_seed_alone(decoder):
    first, again, other = (adapted(decoder, 3, 6.0, seed).A[0] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
