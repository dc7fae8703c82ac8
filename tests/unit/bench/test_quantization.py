"""The benches of lesson 10 with a tiny model: what is read and compared, and shares and errors by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.benches import Letters

from bench import common, quantization
from bench.common import CLAIMS, Run
from lessons_lib.measure import quality
from lessons_lib.measure.clock import Samples
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.quantization import bytes_read
from lessons_lib.quantization import quantize_model as rounded

QUICK = Run(quick=True)


class Reader(Letters):
    """Letters that can be called, as transformers' tokenizers can."""

    def __call__(self, text, **options):
        return type("Encoded", (), {"input_ids": [ord(letter) % 97 for letter in text]})


@pytest.fixture(autouse=True)
def model(monkeypatch):
    """A model of three layers and texts of a few short windows."""
    of = LanguageModel(tiny(3, width=64, tied=True), Reader(), "tiny", "cpu", torch.float64)
    monkeypatch.setattr(common, "model", lambda dtype="": of)
    texts = {"evaluation": "what is read " * 12, "calibration": "calibrated with this " * 12}
    monkeypatch.setattr(quantization, "text", texts.get)
    monkeypatch.setattr(quality, "WINDOW", 40)
    short = lambda ids, window=40: [list(ids[i : i + 40]) for i in range(0, len(ids), 40)]  # noqa: E731
    monkeypatch.setattr(quality, "windows", short)
    for cached in (quantization.ids, quantization.wide):
        cached.cache_clear()
    yield of
    for cached in (quantization.ids, quantization.wide):
        cached.cache_clear()


@pytest.mark.parametrize(
    "claim, name", [("int8-weight-only/perplexity", "W8A16"), ("int8/perplexity", "W8A8"), ("int4/perplexity", "W4A16")]
)
def test_a_perplexity_is_that_of_the_rounded_decoder_over_the_wide_one(claim, name, model):
    found = CLAIMS[claim].measure(QUICK)
    flat = [token for window in quantization.ids("evaluation", 2) for token in window]
    windows = quantization.ids("calibration", 4)
    small, wide = (
        quality.read(quantization.logits_of(of), flat)
        for of in (
            rounded(model.target().decoder, name, windows=windows, values=name == "W4A16"),
            model.target().decoder,
        )
    )
    assert found.ratio.value == pytest.approx(small.perplexity / wide.perplexity, rel=1e-9)
    assert found.facts["perplexity"] == pytest.approx(small.perplexity) and found.ratio.value != 1
    assert len(found.ratio.a.times) == len(small.nll)


def test_what_gptq_recovers_is_the_share_of_perplexity_that_is_not_lost():
    exact, nearest, better = (np.array([[math.log(p) * 10, 10]] * 3) for p in (20.0, 30.0, 24.0))
    assert quantization.share(exact, nearest, better) == pytest.approx((0.6, 0.6, 0.6))
    assert quantization.share(exact, nearest, nearest)[0] == pytest.approx(0)
    assert quantization.share(exact[:1], nearest[:1], better[:1])[1:] == (-math.inf, math.inf)


def test_predictions_are_launching_of_each_format_and_its_bytes_at_the_rate_of_wide_products(monkeypatch, model):
    medians = {quantization.DTYPE: 0.003, "W8A8": 0.007, "W8A16": 0.004, "W4A16": 0.005}
    monkeypatch.setattr(quantization, "in_turn", lambda calls, repeats: {n: Samples((medians[n],) * 3) for n in calls})
    monkeypatch.setattr(quantization.machine, "linears", lambda shape, dtype, device: 0.010)
    facts = quantization.predicted_error(QUICK).facts
    wide = bytes_read(model.target().decoder)
    for name, launching in medians.items():
        read = bytes_read(common.in_format(None if name == quantization.DTYPE else name).decoder)
        assert facts["predicted"][name] == pytest.approx(launching + 0.010 * read / wide)


def test_one_row_is_predicted_from_its_bytes_and_what_wide_weights_take_beyond_theirs(monkeypatch):
    """Wide weights of 8 bytes at 2 a second take 1 s beyond reading; what has 4 is predicted to take 3 s."""
    times = {("W8A8", 1): 3.3, ("W4A16", 1): 1.5, ("W8A16", 1): 3.0, (quantization.DTYPE, 1): 5.0}
    taken = {
        call: Samples((seconds,) * 3)
        for call, seconds in (times | {("W8A8", 9): 9.0, quantization.READING: 4.0}).items()
    }
    monkeypatch.setattr(quantization, "compiled_steps", lambda run: taken)
    monkeypatch.setattr(quantization, "target", lambda name: SimpleNamespace(decoder=name))
    monkeypatch.setattr(quantization, "bytes_read", lambda name: 4 if name else 8)
    for unpacking, said, off in ((0.0, "0.50", 0.5), (1.0, "0.50", 0.5), (4.0, "0.30", 0.7)):
        monkeypatch.setattr(quantization, "unpacking", lambda rate, seconds=unpacking: seconds)
        found = CLAIMS["quantized/compiled-predicted-error"].measure(QUICK)
        assert found.note == f"measured over predicted: W8A8 1.10, W4A16 {said}, W8A16 1.00"
        assert found.ratio.value == pytest.approx(off) and found.facts["worst"] == "W4A16"
