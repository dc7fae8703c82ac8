"""A draft scores its tokens exactly, as a decoder and as a transformers model, before and after it is stored."""

import pytest
import torch
from support.oracle import exact

from lessons_lib.measure.cost import bytes_decode
from lessons_lib.models import LanguageModel, hub, load, tiny, trained
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import (
    TrimmedDecoder,
    decoder_of,
    draft_format,
    load_draft,
    own_weights,
    save_draft,
    start_from,
)
from lessons_lib.models.trained import CARD, WEIGHTS
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import W8A16Linear
from lessons_lib.training.loop import read_texts

KEPT = torch.tensor([0, 3, 4, 17, 42, 61, 80, 96])
IDS = [5, 80, 3, 3, 61, 17, 42, 9]


@pytest.fixture
def network():
    return tiny(layers=3, tied=True)


@pytest.fixture
def draft(network) -> TrimmedDecoder:
    return start_from(Decoder.from_transformers(network), (2, 0), KEPT)


@pytest.fixture
def loaded(network, draft, tmp_path):
    save_draft(draft, tmp_path / "draft", "tiny")
    return load_draft(tmp_path / "draft", network)


def logits_of(decoder):
    with torch.no_grad():
        return decoder.logits(read_texts(decoder, [IDS]))


def test_kept_tokens_score_as_with_the_whole_head_and_no_others_score(network):
    whole = Decoder.from_transformers(network)
    trimmed, full = logits_of(TrimmedDecoder.of(whole, KEPT)), logits_of(whole)
    assert trimmed.shape == full.shape and torch.allclose(trimmed[:, KEPT], full[:, KEPT], atol=1e-12)
    others = torch.ones(97, dtype=torch.bool).index_fill(0, KEPT, False)
    assert (trimmed[:, others] == float("-inf")).all() and (trimmed.softmax(-1)[:, others] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_drafts_shape_and_bytes_are_what_its_one_token_pass_reads(network, draft, tmp_path, dtype):
    """The kept rows of the head instead of all; nothing is quantized unless it is asked for."""
    save_draft(draft, tmp_path / "draft", "tiny")
    network = network.to(dtype)
    model = LanguageModel(load_draft(tmp_path / "draft", network), None, "draft", "cpu", dtype)
    linears = [module for module in model.target().decoder.modules() if isinstance(module, torch.nn.Linear)]
    assert model.shape.head_weights == len(KEPT) * 32 and len(linears) == 4 * model.shape.num_layers + 1
    assert bytes_decode(model.shape, weight_bytes=dtype.itemsize) == sum(of.weight.nbytes for of in linears)
    whole = LanguageModel(network, None, "tiny", "cpu", dtype)
    assert whole.shape.head_weights == 97 * 32
    assert draft_format(model) == ("W8A16" if dtype == torch.bfloat16 else None)
    assert draft_format(whole) is None


def test_a_stored_draft_scores_by_the_head_of_its_target_tied_or_not(tmp_path):
    network = tiny(layers=3, tied=False)
    draft = start_from(Decoder.from_transformers(network), (2, 0), KEPT)
    save_draft(draft, tmp_path / "draft", "tiny")
    stored = load_draft(tmp_path / "draft", network)
    assert torch.equal(stored.get_output_embeddings().rows, network.lm_head.weight[KEPT])
    with torch.no_grad():
        theirs = stored(torch.tensor([IDS])).logits[0][:, KEPT]
    torch.testing.assert_close(logits_of(decoder_of(stored))[:, KEPT], theirs, rtol=0, atol=1e-4)


def test_a_draft_starts_as_copies_of_the_layers_that_were_named(network, draft):
    target = Decoder.from_transformers(network)
    for ours, theirs in zip(draft.layers, (target.layers[2], target.layers[0]), strict=True):
        assert torch.equal(ours.qkv.weight, theirs.qkv.weight)
        assert ours.qkv.weight.data_ptr() != theirs.qkv.weight.data_ptr()
    assert all(weight.requires_grad for weight in own_weights(draft).values())
    assert not draft.embedding.weight.requires_grad and not draft.head.weight.requires_grad


@pytest.mark.parametrize("layers", [(), (3,), (-1,)])
def test_layers_that_the_target_lacks_are_refused(network, layers):
    with pytest.raises(ValueError, match="cannot be copied; choose numbers from 0 to 2"):
        start_from(Decoder.from_transformers(network), layers, KEPT)


def test_as_a_transformers_model_it_gives_the_decoders_logits(loaded):
    with exact(), torch.no_grad():
        theirs = loaded(torch.tensor([IDS])).logits[0]
    ours = logits_of(decoder_of(loaded))
    assert theirs.shape == (len(IDS), 97) and torch.equal(theirs == float("-inf"), ours == float("-inf"))
    assert torch.allclose(theirs[:, KEPT], ours[:, KEPT], atol=1e-12)


def test_a_stored_draft_differs_by_the_rounding_of_its_matrices_alone(draft, loaded):
    with torch.no_grad():
        for weight in own_weights(draft).values():
            if weight.ndim == 2:
                weight.copy_(quantize(weight, 8, scale_dtype=torch.float32).dequantize())
    assert torch.allclose(logits_of(draft)[:, KEPT], logits_of(decoder_of(loaded))[:, KEPT], atol=1e-6)


def test_nothing_of_the_target_is_stored_and_its_embedding_is_shared(network, draft, loaded, tmp_path):
    matrices = sum(weight.numel() for weight in own_weights(draft).values() if weight.ndim == 2)
    stored = (tmp_path / "draft" / WEIGHTS).stat().st_size
    assert matrices < stored < 1.5 * matrices + 4096  # a byte each, then scales, norms and names
    assert loaded.get_input_embeddings().weight.data_ptr() == network.get_input_embeddings().weight.data_ptr()
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_a_draft_in_8_bits_has_no_other_matrices_and_scores_alike(network, draft, tmp_path):
    save_draft(draft, tmp_path / "draft", "tiny")
    stored = load_draft(tmp_path / "draft", network.bfloat16())
    model = LanguageModel(stored, None, "draft", "cpu", torch.bfloat16)
    small = model.target(weights=draft_format(model)).decoder
    assert not any(isinstance(module, torch.nn.Linear) for module in small.modules())
    assert isinstance(small.head, W8A16Linear) and small.head.out_features == len(KEPT)
    torch.testing.assert_close(logits_of(small)[:, KEPT], logits_of(decoder_of(stored))[:, KEPT], rtol=0, atol=0.5)


def test_transformers_drafts_with_it_and_the_text_stays_the_targets(loaded, network):
    ids, lengths = torch.tensor([IDS]), {"max_new_tokens": 20, "do_sample": False}
    plain = network.generate(ids, **lengths)
    assert torch.equal(network.generate(ids, assistant_model=loaded, **lengths), plain)


def test_a_draft_loads_by_name_with_its_targets_tokenizer(tiny_package, monkeypatch, tmp_path):
    monkeypatch.setattr(trained, "OURS", tmp_path / "weights")
    monkeypatch.setitem(hub.DRAFTS, "tiny-draft", "packaged-tiny")
    whole = Decoder.from_transformers(load("packaged-tiny", device="cpu", dtype="fp32").network)
    draft = start_from(whole, (1,), torch.arange(3, 40))
    save_draft(draft, tmp_path / "weights" / "tiny-draft", "packaged-tiny", steps=7)
    assert "tiny-draft" in hub.names()
    assert '"steps": 7' in (tmp_path / "weights" / "tiny-draft" / CARD).read_text()
    model, target = load("tiny-draft", device="cpu", dtype="fp32"), load("packaged-tiny", device="cpu")
    assert isinstance(model, LanguageModel) and model.shape.num_layers == 1
    assert model.tokenizer.get_vocab() == target.tokenizer.get_vocab()
    decoder = model.target(kind="decoder").decoder
    assert isinstance(decoder, TrimmedDecoder) and len(decoder.kept) == 37
    assert model.target(kind="transformers").vocab_size == target.shape.vocab_size
