"""Claims of lesson 10: speed of rounded decoders, and what rounding costs in quality.

Speeds are of the compiled decoder, in bf16 beside the rounded weights where the machine computes in it and else in
fp32; transformers runs in the same format. Quality is read in fp32 along the shipped text, nothing compiled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache

import generation
import numpy as np
import torch
from asking import DTYPE, listed, prompt_of
from by_question import drawings
from generation import CONTEXT, ours, theirs
from medusa import off_by
from registry import Measured, Run, claim

from lessons_lib.data import text
from lessons_lib.decoding.probing import logits_along, repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.measure import hardware, quality
from lessons_lib.measure.clock import Ratio, Samples, compare, in_turn, timed
from lessons_lib.measure.quality import Reading
from lessons_lib.models import LanguageModel, load
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of
from lessons_lib.models.quantized import FORMATS, NONE, Remedies, bytes_kept, bytes_read, quantized

WIDE = 9  # rows: a token and eight guesses
CACHED = 64  # tokens behind which steps are timed
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}; ours: CompiledTarget, {CONTEXT} positions"
TEXT = "fp32, perplexity of the shipped articles of WikiText-2, windows of 512"
GPTQ = "int3 g64"
REMEDIES = {
    "none": NONE,
    "smoothing": Remedies(columns={}, terms={}),
    "loud columns of the head": Remedies(smooth={}, terms={}),
    "two terms for down": Remedies(smooth={}, columns={}),
    "all": Remedies(),
}
BESIDE = (  # formats whose quality is read beside those of claims, on fewer windows
    "int8 tensor", "int8", "int6 g64", "int5 g64", "int4 g32", "int4 g64", "int4 g64 absmax", "int4 row", "nf4",
    "nf4 double", "fp8", "fp8 e5m2", "int3 g64", "awq int3 g64", "gptq int3 g64", "int2 g32", "llm.int8",
)  # fmt: skip


# --- speed ---


@cache
def target(weights: str | None) -> CompiledTarget:
    """Compiled for one row and for WIDE; None: weights as wide as everything else."""
    of = generation.model(DTYPE).target(weights=weights)
    return CompiledTarget(of.decoder, of.tokenizer, of.eos, CONTEXT, (1, WIDE))


def vs_generate(weights: str, run: Run) -> Measured:
    of = target(weights)
    timed(ours(of, 4), repeats=1, warmup=1)  # compiles
    ratio = compare(theirs(DTYPE, run.tokens), ours(of, run.tokens), repeats=run.repeats, warmup=1)
    read, kept = bytes_read(of.decoder), bytes_kept(of.decoder)
    said = of.problem or f"a step reads {read / 1e6:.0f} MB; {kept / 1e6:.0f} MB kept"
    return Measured(ratio, said, {"bytes_read": read, "bytes_kept": kept, "compile_seconds": of.compile_seconds})


@claim("int4/vs-generate", ">= 4.5", THEIRS + ", groups of 32, head in 8 bits")
def int4_speed(run: Run) -> Measured:
    return vs_generate("int4", run)


@claim("int8/vs-generate", ">= 4.5", THEIRS + ", weights and activations")
def int8_speed(run: Run) -> Measured:
    return vs_generate("int8", run)


@claim("int8-weight-only/vs-generate", ">= 3.5", THEIRS)
def weight_only_speed(run: Run) -> Measured:
    return vs_generate("int8-weight-only", run)


@claim("int8/vs-bf16", ">= 1.4", f"the same compiled decoder with its weights in {DTYPE}")
def over_wide(run: Run) -> Measured:
    wide, small = target(None), target("int8")
    for of in (wide, small):
        timed(ours(of, 4), repeats=1, warmup=1)
    return Measured(compare(ours(wide, run.tokens), ours(small, run.tokens), repeats=run.repeats, warmup=1))


@claim("int8/width-9", "<= 1.8", "the same compiled step with one row")
def width(run: Run) -> Measured:
    """Beside it, in turn, the same of int4 and of wide weights."""
    calls = {(name or DTYPE, rows): step(name, rows) for name in ("int8", "int4", None) for rows in (1, WIDE)}
    found = in_turn(calls, repeats=5 * run.repeats)
    v = {name: Ratio.of(found[name, WIDE], found[name, 1]) for name in ("int8", "int4", DTYPE)}
    steps = {f"{name} {rows} rows": samples.times for (name, rows), samples in found.items()}
    return Measured(v["int8"], f"v({WIDE}): {listed({n: r.value for n, r in v.items()})}", {"steps": steps})


@claim(
    "quantized/predicted-error", "<= 0.25",
    "bytes of weights and cache over the read bandwidth, and the overhead of a step with wide weights; worst format",
    unit="",
)  # fmt: skip
def predicted_error(run: Run) -> Measured:
    """|measured / predicted - 1|. The overhead is what a step with wide weights takes beyond its bytes."""
    rates = hardware.probe("cpu")
    found = in_turn({name or DTYPE: step(name) for name in (None, *FORMATS)}, repeats=5 * run.repeats)
    moved = {name or DTYPE: step_bytes(name) for name in (None, *FORMATS)}
    overhead = max(0.0, found[DTYPE].median - moved[DTYPE] / rates.read_bandwidth)
    predicted = {name: moved[name] / rates.read_bandwidth + overhead for name in FORMATS}
    asserted = {name: Samples((seconds,) * len(found[name].times)) for name, seconds in predicted.items()}
    errors = {name: off_by(Ratio.of(found[name], asserted[name])) for name in FORMATS}
    worst = max(errors, key=lambda name: errors[name].value)
    off = {name: found[name].median / predicted[name] for name in FORMATS}
    note = f"measured over predicted: {listed(off)}; overhead {1e3 * overhead:.1f} ms"
    samples = {name: of.times for name, of in found.items()}
    facts = {"bytes": moved, "bandwidth": rates.read_bandwidth, "overhead": overhead, "predicted": predicted}
    return Measured(errors[worst], note, facts | {"steps": samples, "worst": worst})


def step(weights: str | None, rows: int = 1) -> Callable[[], None]:
    return repeatable_step(target(weights), prompt_of(CACHED), rows)


def step_bytes(weights: str | None) -> float:
    """All that a one-row step must read: matrices as they are kept, and the whole buffers of the cache."""
    of = target(weights)
    shape = generation.model(DTYPE).shape
    return bytes_read(of.decoder) + shape.kv_elements(of.capacity) * of.dtype.itemsize


# --- quality ---


def model() -> LanguageModel:
    return generation.model("fp32")


@cache
def ids(part: str, count: int | None = None) -> list[list[int]]:
    """Windows of one of the texts."""
    return quality.windows(model().tokenizer(text(part), verbose=False).input_ids)[:count]


def reading(decoder: Decoder, windows: int | None, beside: Decoder | None = None, among=None) -> Reading:
    flat = [token for window in ids("evaluation", windows) for token in window]
    return quality.read(logits_of(decoder), flat, beside=logits_of(beside) if beside else None, among=among)


def logits_of(decoder: Decoder) -> quality.Logits:
    of = DecoderTarget(decoder)
    return lambda ids: logits_along(of, ids, len(ids))


@cache
def wide(windows: int | None) -> Reading:
    return reading(model().target().decoder, windows)


def rounded(format: str, **options) -> Decoder:
    calibration = ids("calibration", 4 if format == "int8" else 16)
    return quantized(model().target().decoder, format, windows=calibration, **options)


def windows_of(run: Run) -> int | None:
    return 2 if run.quick else None


def perplexity(run: Run, format: str, decoder: Decoder | None = None) -> Measured:
    reference = wide(windows_of(run))
    found = reading(decoder or rounded(format), windows_of(run))
    note = f"{found.perplexity:.2f} against {reference.perplexity:.2f}, {found.tokens:,} tokens"
    note += f"; {quality.agreement(found, reference):.1%} of the favourites the same"
    facts = {"unit": "nats per token of a window", "perplexity": found.perplexity, "fp32": reference.perplexity}
    return Measured(as_ratio(found, reference), note, facts)


def as_ratio(found: Reading, reference: Reading) -> Ratio:
    change = quality.ratio(found, reference)
    means = [Samples(tuple(float(part.mean()) for part in of.nll)) for of in (found, reference)]
    return Ratio(change.value, change.low, change.high, *means)


@claim("int8-weight-only/perplexity", "<= 1.005", TEXT)
def weight_only_quality(run: Run) -> Measured:
    return perplexity(run, "int8-weight-only")


@claim("int8/perplexity", "<= 1.010", TEXT)
def int8_quality(run: Run) -> Measured:
    """Beside it what each remedy alone brings back, on fewer windows."""
    found = perplexity(run, "int8")
    few = 2 if run.quick else 8
    beside = {name: row(rounded("int8", remedies=of), few) for name, of in REMEDIES.items()}
    said = ", ".join(f"{name} {of['ratio']:.3f}" for name, of in beside.items())
    return Measured(found.ratio, f"{found.note}; on {few} windows with {said}", found.facts | {"remedies": beside})


@claim("int4/perplexity", "<= 1.010", TEXT + "; groups of 32 in line with the file's own, head in 8 bits")
def int4_quality(run: Run) -> Measured:
    """Beside it a table of formats, on fewer windows. The file's blocks are of 4 bits, which favours int4 g32."""
    found, few = perplexity(run, "int4"), 2 if run.quick else 8
    names = BESIDE[:2] if run.quick else BESIDE
    table = {name: row(rounded(name, values=name != "llm.int8"), few) for name in names}
    return Measured(found.ratio, found.note, found.facts | {"formats": table, "windows": few})


def row(decoder: Decoder, windows: int) -> dict:
    """Bits, perplexity's ratio, divergence and agreement of one rounded decoder."""
    found, reference = reading(decoder, windows, beside=model().target().decoder), wide(windows)
    bits = 8 * bytes_read(decoder) / model().shape.weights
    change = asdict(quality.ratio(found, reference))
    agreed = quality.agreement(found, reference)
    return {"bits": bits, "ratio": change.pop("value"), **change, "agreement": agreed, "kl": found.mean_divergence}


@claim(
    "gptq-3bit/recovered", ">= 0.5",
    f"smol-draft, layers in {GPTQ}: the perplexity that rounding to the nearest loses; calibrated on other articles",
    unit="",
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
