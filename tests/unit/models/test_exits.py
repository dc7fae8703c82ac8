"""Exits of the tiny model, an adapter that at first changes nothing, and a file that gives back what was stored."""

import pytest
import torch

from lessons_lib.models import LanguageModel, exits, hub, load, read_card, tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.exits import ExitAdapter, exit_logits, fine_tune, load_exit, save_layerskip
from lessons_lib.models.lora import adapted, adapters

IDS = [5, 80, 3, 3, 61]

CLOSE = dict(rtol=1e-3, atol=1e-5)  # transformers rotates in float32


@pytest.fixture
def stored(tmp_path):
    """Random LoRA matrices and a random exit adapter in a folder, with the adapted decoder and the adapter."""
    decoder = adapted(Decoder.from_transformers(tiny(layers=3)), rank=2, alpha=4.0)
    early, generator = ExitAdapter(32, 2), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in [*adapters(decoder).values(), *early.parameters()]:
            weight.copy_(torch.randn(weight.shape, generator=generator).bfloat16() * 0.25)
    save_layerskip(tmp_path, adapters(decoder), 2, 4.0, early, "tiny-1.7b", steps=7)
    return tmp_path, decoder, early


def test_the_logits_of_exits_are_those_of_a_model_cut_there():
    network = tiny(layers=3)
    found = list(exit_logits(Decoder.from_transformers(network), IDS))
    assert len(found) == 3
    for layers, logits in enumerate(found, 1):
        cut = hub.cut(LanguageModel(network, None, "tiny", "cpu", torch.float64), layers)
        with torch.no_grad():
            torch.testing.assert_close(logits, cut.network(torch.tensor([IDS])).logits[0], **CLOSE)


def test_an_untrained_adapter_changes_nothing_and_a_trained_one_is_h_plus_w2_silu_w1_h():
    adapter, h = ExitAdapter(4, 1), torch.randn(3, 4)
    assert torch.equal(adapter(h), h) and adapter.W1.abs().min() > 0
    with torch.no_grad():
        adapter.W2.fill_(0.5)
    x = h @ adapter.W1.T
    torch.testing.assert_close(adapter(h), h + (x * torch.sigmoid(x)) @ adapter.W2.T)


def test_a_fine_tuned_network_and_its_decoder_compute_as_the_adapted_decoder(stored):
    folder, decoder, _ = stored
    network = tiny(layers=3)
    fine_tune(network, folder)
    torch.testing.assert_close(Decoder.from_transformers(network).read(IDS), decoder.read(IDS).detach())
    with torch.no_grad():
        torch.testing.assert_close(network(torch.tensor([IDS])).logits[0], decoder.read(IDS), **CLOSE)
    assert (decoder.read(IDS) - Decoder.from_transformers(tiny(layers=3)).read(IDS)).abs().max() > 0.1


def test_the_fine_tuned_model_loads_by_name_in_any_dtype(stored, monkeypatch):
    folder, decoder, _ = stored
    monkeypatch.setitem(hub.FINE_TUNED, str(folder), "packaged-tiny")
    monkeypatch.setitem(hub.PACKAGED, "packaged-tiny", None)
    monkeypatch.setattr(hub, "packaged_folder", lambda name: name)

    class Words:
        pad_token = "."

    monkeypatch.setattr(hub, "_read", lambda name, dtype: (tiny(layers=3, dtype=dtype), Words()))
    exact = load(str(folder), device="cpu", dtype="fp64")
    torch.testing.assert_close(exact.target().decoder.read(IDS), decoder.read(IDS).detach())
    rounded = load(str(folder), device="cpu", dtype="bf16")
    assert rounded.network.dtype == torch.bfloat16
    # rounded once: the weights are those of the float32 model, cast
    merged = load(str(folder), device="cpu", dtype="fp32").network
    for ours, theirs in zip(rounded.network.parameters(), merged.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16())


def named(name: str) -> LanguageModel:
    return LanguageModel(tiny(layers=3), None, name, "cpu", torch.float64)


def test_the_exit_adapter_comes_back_for_the_model_that_it_is_for(stored, monkeypatch):
    folder, _, early = stored
    monkeypatch.setattr(exits, "LAYERSKIP", folder)
    h, found = torch.randn(3, 32, dtype=torch.float64), load_exit(named("tiny-1.7b"))
    assert torch.equal(found(h), early.double()(h)) and found.exit_layer == 2 and read_card(folder)["steps"] == 7
    with pytest.raises(ValueError, match="is for tiny-1.7b, not for tuned"):
        load_exit(named("tuned"))
