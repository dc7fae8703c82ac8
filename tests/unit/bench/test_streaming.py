"""The bench of lesson 16 on a tiny model: losses in chunks, the window computed anew, curves stored one by one."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench import common, streaming
from bench.common import Run
from lessons_lib.caches import Streaming
from lessons_lib.decoding.targets import DecoderTarget, StreamingTarget
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder

IDS = torch.randint(97, (150,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.from_transformers(tiny())


def expected(decoder, ids) -> np.ndarray:
    """Loss of every id after the first, from one pass over all."""
    scores = decoder.read(ids[:-1]).double().log_softmax(-1)
    return -scores[range(len(ids) - 1), ids[1:]].numpy()


def test_losses_in_chunks_are_those_of_one_pass(decoder):
    assert np.allclose(streaming.losses(DecoderTarget(decoder), IDS, 40), expected(decoder, IDS), atol=1e-5)
    target = StreamingTarget(decoder, streaming=Streaming(2, 20))
    assert np.allclose(streaming.losses(target, IDS, 20), streaming.losses(target, IDS, 1), atol=1e-5)


def test_a_window_computed_anew_sees_its_own_tokens_alone(decoder):
    at = [10, 64, 128]
    found = streaming.recomputed(decoder, IDS, 30, at, batch=2)
    assert np.allclose(found, [expected(decoder, IDS[max(0, i - 29) : i + 2])[-1] for i in at], atol=1e-5)


def test_a_stretched_decoder_has_more_positions_and_the_same_weights(decoder):
    longer = streaming.stretched(decoder, 400)
    assert len(longer.cos) == 400 and torch.equal(longer.cos[:256], decoder.cos) and len(decoder.cos) == 256
    assert longer.embedding.weight is decoder.embedding.weight


class Words:
    """Stands in for a tokenizer."""

    def __call__(self, text, **options):
        return SimpleNamespace(input_ids=[ord(letter) % 97 for letter in text])


@pytest.fixture
def model(monkeypatch) -> LanguageModel:
    network = tiny(dtype=torch.float32, context=512)
    model = LanguageModel(network, Words(), "tiny", "cpu", network.dtype)
    monkeypatch.setattr(common, "model", lambda: model)
    monkeypatch.setattr(common, "eager", model.target)
    monkeypatch.setattr(streaming, "load", lambda *args, **options: model)
    return model


def test_every_curve_is_stored_at_once_and_a_second_run_measures_what_is_missing(model, monkeypatch, tmp_path, capsys):
    out = tmp_path / "curves.json"
    monkeypatch.setattr(sys, "argv", ["bench.streaming", "--out", str(out)])
    monkeypatch.setattr(streaming, "TOKENS", 300)
    monkeypatch.setattr(streaming, "WINDOWS", (64,))
    assert streaming.main() == 0
    file = json.loads(out.read_text(encoding="utf-8"))
    assert file["tokens"] == 300 and set(file["texts"]) == {"wikitext", "shakespeare"}
    curves = file["texts"]["wikitext"]
    assert list(curves) == [
        "4+64", "0+64", "1+64", "2+64", "8+64", "recomputed 68", "4+64, positions of the text", "dense"
    ]  # fmt: skip
    assert [len(curves["4+64"]["mean"]), len(curves["4+64"]["at"]), len(curves["recomputed 68"]["at"])] == [2, 4, 4]
    assert (
        curves["dense"]["at"][0] == curves["4+64"]["at"][0] == curves["recomputed 68"]["at"][0]
    )  # nothing evicted yet
    del curves["dense"]
    out.write_text(json.dumps(file), encoding="utf-8")
    capsys.readouterr()
    assert streaming.main() == 0
    told = capsys.readouterr()
    assert (told.out + told.err).count("nats") == 1
    assert "dense" in json.loads(out.read_text(encoding="utf-8"))["texts"]["wikitext"]


def test_the_claims_compare_what_they_say(model, monkeypatch):
    for name, value in {"WINDOW": 60, "SINKS": 4, "TOKENS": 300}.items():
        monkeypatch.setattr(streaming, name, value)
    run = Run(quick=True)
    monkeypatch.setattr(streaming, "LENGTHS", (100, 200))
    flat = streaming.flat(run)
    assert set(flat.facts["steps"]) == {"100", "300", "plain 100", "plain 200"} and flat.ratio.value > 0
    assert streaming.vs_recompute(run).ratio.value > 0
    ids, decoder = streaming.shakespeare(2_500), model.target().decoder
    read = {n: losses_of(decoder, n, ids) for n in (0, 4)}
    at = list(range(60 + streaming.EVERY, len(ids) - 1, streaming.EVERY))
    anew = streaming.recomputed(decoder, ids, 64, at)
    for lost, ours, theirs in (
        (streaming.loss_with_sinks(run), read[4][at], anew),
        (streaming.loss_without_sinks(run), read[0][60:], read[4][60:]),
    ):
        assert len(lost.facts["ours"]) == len(ours) > 2
        assert lost.ratio.value == pytest.approx((ours - theirs).mean(), abs=1e-3)
        assert lost.ratio.low <= lost.ratio.value <= lost.ratio.high


def losses_of(decoder, sinks: int, ids) -> np.ndarray:
    return streaming.losses(StreamingTarget(decoder, streaming=Streaming(sinks, 60)), ids, 32)


def test_on_the_real_model_four_sinks_replace_the_window_computed_anew_and_none_do_not(smollm2):
    """A window of 64 over 320 tokens of WikiText-2, at every eighth token after it is full."""
    decoder, ids = smollm2.target().decoder, streaming.ids_of("wikitext", smollm2.tokenizer, 320)
    at = range(80, 319, 8)
    anew = streaming.recomputed(decoder, ids, 68, at).mean()
    loss = {
        sinks: streaming.losses(StreamingTarget(decoder, streaming=Streaming(sinks, 64)), ids, 64)[list(at)].mean()
        for sinks in (4, 0)
    }
    assert abs(loss[4] - anew) < 0.25
    assert loss[0] - anew > 0.7
