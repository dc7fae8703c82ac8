"""Claims of lesson 10: what rounding costs in quality, read along the shipped text in fp32, nothing compiled."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

import numpy as np
import torch

from bench import generation
from bench.asking import listed
from bench.by_question import drawings
from bench.registry import Measured, Run, claim
from lessons_lib.data import text
from lessons_lib.decoding.probing import logits_along
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.measure import quality
from lessons_lib.measure.clock import Ratio, Samples
from lessons_lib.measure.quality import Reading
from lessons_lib.models import load
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of
from lessons_lib.models.quantized import NONE, Remedies, bytes_read, quantized

TEXT = "fp32, perplexity of the shipped articles of WikiText-2, windows of 512"
GPTQ = "int3 g64"
TWO = {"down": 2}
REMEDIES = {
    "none": NONE,
    "smoothing": Remedies(columns={}),
    "loud columns of the head": Remedies(smooth={}),
    "both": Remedies(),
    "two terms for down": Remedies({}, {}, TWO),
    "all": Remedies(terms=TWO),
}
BESIDE = (  # formats whose quality is read beside those of claims, on fewer windows
    "int8 tensor", "fp8", "llm.int8", "int6 g64", "int4 g64", "int4 row", "nf4", "int3 g64", "gptq int3 g64",
)  # fmt: skip


def unrounded() -> Decoder:
    """The readable decoder in fp32."""
    return generation.model("fp32").target().decoder


@cache
def ids(part: str, count: int | None = None) -> list[list[int]]:
    """Windows of one of the texts."""
    return quality.windows(generation.model("fp32").tokenizer(text(part), verbose=False).input_ids)[:count]


def reading(decoder: Decoder, windows: int | None, beside: Decoder | None = None, among=None) -> Reading:
    """How a decoder finds the first windows of the text that quality is measured on, all if None.

    beside: the decoder from whose distribution the divergence is taken. among: as of `quality.read`.
    """
    flat = [token for window in ids("evaluation", windows) for token in window]
    return quality.read(logits_of(decoder), flat, beside=logits_of(beside) if beside else None, among=among)


def logits_of(decoder: Decoder) -> quality.Logits:
    """A decoder as `quality.read` asks it: T ids -> logits (T, V)."""
    of = DecoderTarget(decoder)
    return lambda ids: logits_along(of, ids, len(ids))


@cache
def wide(windows: int | None) -> Reading:
    """The same text as read by the decoder in fp32."""
    return reading(unrounded(), windows)


def rounded(format: str, **options) -> Decoder:
    """The decoder with weights in this format, calibrated on 16 windows, for int8 on 4."""
    calibration = ids("calibration", 4 if format == "int8" else 16)
    return quantized(unrounded(), format, windows=calibration, **options)


def windows_of(run: Run) -> int | None:
    """How many windows a run reads; None: all."""
    return 2 if run.quick else None


def perplexity(run: Run, format: str, **options) -> Measured:
    """Perplexity with weights in this format over that in fp32, both on the same windows; options: `quantized`'s."""
    reference = wide(windows_of(run))
    found = reading(rounded(format, **options), windows_of(run))
    note = f"{found.perplexity:.2f} against {reference.perplexity:.2f}, {found.tokens:,} tokens"
    note += f"; {quality.agreement(found, reference):.1%} of the favourites the same"
    facts = {"unit": "nats per token of a window", "perplexity": found.perplexity, "fp32": reference.perplexity}
    return Measured(as_ratio(found, reference), note, facts)


def as_ratio(found: Reading, reference: Reading) -> Ratio:
    """Perplexity over the reference's; the samples are each window's mean, in nats per token."""
    change = quality.ratio(found, reference)
    means = [Samples(tuple(float(part.mean()) for part in of.nll)) for of in (found, reference)]
    return Ratio(change.value, change.low, change.high, *means)


@claim("int8-weight-only/perplexity", "<= 1.005", TEXT, dtype="fp32")
def weight_only_quality(run: Run) -> Measured:
    return perplexity(run, "int8-weight-only")


@claim("int8/perplexity", "<= 1.010", TEXT, dtype="fp32")
def int8_quality(run: Run) -> Measured:
    """Beside it what each remedy alone brings back, on fewer windows."""
    found = perplexity(run, "int8")
    few = 2 if run.quick else 8
    beside = {name: row(rounded("int8", remedies=of), few) for name, of in REMEDIES.items()}
    said = ", ".join(f"{name} {of['ratio']:.3f}" for name, of in beside.items())
    return Measured(found.ratio, f"{found.note}; on {few} windows with {said}", found.facts | {"remedies": beside})


@claim("int4/perplexity", "<= 1.010", TEXT + "; groups of 32 in line with the file's own, head in 8 bits", dtype="fp32")
def int4_quality(run: Run) -> Measured:
    """Beside it a table of formats, on fewer windows. The file's blocks are of 4 bits, which favours int4 g32.

    The weights hold their rounded values as fp32: the packed kernel, which rounds nothing more in fp32, is slow on many
    rows. That both read alike is tested.
    """
    found, few = perplexity(run, "int4", values=True), 2 if run.quick else 4
    names = BESIDE[:2] if run.quick else BESIDE
    table = {name: row(rounded(name, values=name != "llm.int8"), few) for name in names}
    return Measured(found.ratio, found.note, found.facts | {"formats": table, "windows": few})


def row(decoder: Decoder, windows: int) -> dict:
    """Bits, perplexity's ratio, divergence and agreement of one rounded decoder."""
    found, reference = reading(decoder, windows, beside=unrounded()), wide(windows)
    bits = 8 * bytes_read(decoder) / generation.model("fp32").shape.weights
    change = asdict(quality.ratio(found, reference))
    agreed = quality.agreement(found, reference)
    return {"bits": bits, "ratio": change.pop("value"), **change, "agreement": agreed, "kl": found.mean_divergence}


@claim(
    "gptq-3bit/recovered", ">= 0.5",
    f"smol-draft, layers in {GPTQ}: the perplexity that rounding to the nearest loses; calibrated on other articles",
    unit="", dtype="fp32",
)  # fmt: skip
def recovered(run: Run) -> Measured:
    """1 - what GPTQ loses over what rounding to the nearest loses, on weights that were never rounded to few bits.

    smol-draft's layers are stored in 8 bits, trained since they were copied. Of the text, the tokens that its trimmed
    head scores. The interval is that of windows drawn again.
    """
    decoder, count = decoder_of(load("smol-draft", device="cpu", dtype="fp32").network), windows_of(run)
    among = torch.zeros(decoder.config.vocab_size, dtype=torch.bool).index_fill(0, decoder.kept, True)
    calibration = ids("calibration", 2 if run.quick else None)
    options = dict(head=None, windows=calibration, values=True)
    made = {"fp32": decoder} | {name: quantized(decoder, name, **options) for name in (GPTQ, f"gptq {GPTQ}")}
    found = {name: reading(of, count, among=among) for name, of in made.items()}
    exact, nearest, compensated = (np.array([[float(x.sum()), len(x)] for x in of.nll]) for of in found.values())
    value, low, high = share(exact, nearest, compensated)
    kept = {name: of.perplexity for name, of in found.items()}
    means = [Samples(tuple((part[:, 0] / part[:, 1]).tolist())) for part in (compensated, nearest)]
    note = f"perplexity {listed(kept)}; {found['fp32'].tokens:,} tokens"
    return Measured(Ratio(value, low, high, *means), note, {"perplexity": kept, "unit": "nats per token of a window"})


def share(exact: np.ndarray, nearest: np.ndarray, better: np.ndarray) -> tuple[float, float, float]:
    """Share of the perplexity that `nearest` loses that `better` does not, each (windows, 2) of sum and count."""

    def of(drawn: Sequence) -> np.ndarray:
        sums = [part[drawn].sum(-2) for part in (exact, nearest, better)]
        p, q, r = (np.exp(part[..., 0] / part[..., 1]) for part in sums)
        return 1 - (r - p) / (q - p)

    low, high = np.percentile(of(drawings(len(exact))), [2.5, 97.5]) if len(exact) > 1 else (-math.inf, math.inf)
    return float(of(np.arange(len(exact)))), float(low), float(high)
