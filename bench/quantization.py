"""Claims of lesson 10: the speed of quantized decoders, and what rounding costs in quality.

Speed is compared with transformers' generate, with our unquantized decoder, and with the prediction. Everything except
the predicted steps is compiled, with activations in bf16 where the machine has native bf16, else fp32; transformers
runs in the same dtype. Quality is measured on the shipped text in fp32, without compiling.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch

from bench import common, decoding
from bench.common import DTYPE, Measured, Run, claim, listed, off_by, prompt_of
from bench.decoding import CONTEXT, ours
from lessons_lib.data import text
from lessons_lib.decoding.probing import logits_along, repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, Target
from lessons_lib.decoding.timing import matmuls_in_cache, overhead_proxy
from lessons_lib.measure import machine, quality
from lessons_lib.measure.clock import Ratio, Samples, compare, in_turn, resampled, timed
from lessons_lib.measure.quality import Reading
from lessons_lib.models import load
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of
from lessons_lib.quantization import bytes_kept, bytes_read, cpu, quantize_model

FORMATS = ("W8A8", "W8A16", "W4A16")  # formats of the lesson; W4A8 belongs to lesson 11
WIDE = 9  # tokens: the root and eight draft tokens
READING = "reading", 0  # a key beside the steps: plain reading, 0 tokens
CACHED = 64  # cached tokens when steps are timed
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}; ours: CompiledTarget, {CONTEXT} positions"
TEXT = "fp32, perplexity of the shipped articles of WikiText-2, windows of 512; weights once rounded to 4 bits (Q4_1)"
GPTQ = "int3 g64"


@cache
def target(weights: str | None) -> CompiledTarget:
    """Compiled for one token and for WIDE tokens; None: unquantized weights."""
    of = common.in_format(weights)
    return CompiledTarget(of.decoder, of.tokenizer, of.eos, CONTEXT, (1, WIDE))


def vs_generate(weights: str, run: Run) -> Measured:
    """Speedup over transformers' generate with weights in this format."""
    of = target(weights)
    ratio = decoding.over_generate(of, DTYPE, run)
    read, kept = bytes_read(of.decoder), bytes_kept(of.decoder)
    note = of.problem or f"a step reads {read / 1e6:.0f} MB; the weights take {kept / 1e6:.0f} MB"
    facts = {"bytes_read": read, "bytes_kept": kept, "compile_seconds": of.compile_seconds}
    return Measured(ratio, note, facts)


@claim(
    "int4/vs-generate", ">= 4.5", THEIRS + ", groups of 32, head in 8 bits",
    says="With W4A16 weights, our compiled decoder is {times} as fast as transformers' generate",
)  # fmt: skip
def int4_speed(run: Run) -> Measured:
    return vs_generate("W4A16", run)


@claim(
    "int8/vs-generate", ">= 4.5", THEIRS + ", weights and activations",
    says="With W8A8, our compiled decoder is {times} as fast as transformers' generate",
)  # fmt: skip
def int8_speed(run: Run) -> Measured:
    return vs_generate("W8A8", run)


@claim(
    "int8-weight-only/vs-generate", ">= 3.5", THEIRS,
    says="With W8A16 weights, our compiled decoder is {times} as fast as transformers' generate",
)  # fmt: skip
def weight_only_speed(run: Run) -> Measured:
    return vs_generate("W8A16", run)


@claim(
    "int8/vs-bf16", ">= 1.4", f"the same compiled decoder with its weights in {DTYPE}",
    says="W8A8 makes our compiled decoder {times} as fast",
)  # fmt: skip
def over_wide(run: Run) -> Measured:
    wide, small = target(None), target("W8A8")
    for of in (wide, small):
        timed(ours(of, 4), repeats=1, warmup=1)
    return Measured(compare(ours(wide, run.tokens), ours(small, run.tokens), repeats=run.repeats, warmup=1))


@claim(
    "int8/width-9", "<= 1.8", "the same compiled pass over one token",
    says="In W8A8, a compiled forward pass over 9 tokens takes {times} as long as one over a single token",
)  # fmt: skip
def width(run: Run) -> Measured:
    """Cost of a step of WIDE tokens relative to one token in int8; also for int4 and unquantized weights."""
    found = compiled_steps(run)
    v = {name: Ratio.of(found[name, WIDE], found[name, 1]) for name in ("W8A8", "W4A16", DTYPE)}
    steps = {f"{name} {rows} rows": samples.times for (name, rows), samples in found.items() if rows}
    return Measured(v["W8A8"], f"v({WIDE}): {listed({n: r.value for n, r in v.items()})}", {"steps": steps})


@claim(
    "quantized/compiled-predicted-error", "<= 0.25",
    f"compiled steps, {DTYPE}; predicted: the time of unquantized weights beyond reading them, plus reading the "
    "format's bytes at this machine's bandwidth or, if that takes longer, unpacking W4A16; value: the worst format",
    unit="",
    says="The predicted time of a compiled decode step with quantized weights is {percent} off in the worst format",
)  # fmt: skip
def compiled_predicted_error(run: Run) -> Measured:
    """|measured / predicted - 1| for one token. The prediction uses only the timed step with unquantized weights.

    For int4 it is the larger of reading and unpacking.
    """
    steps = compiled_steps(run)
    one = {name: samples for (name, rows), samples in steps.items() if rows == 1}
    rate = bytes_read(target(None).decoder) / steps[READING].median
    reading = {name: bytes_read(target(None if name == DTYPE else name).decoder) / rate for name in one}
    beyond = max(0.0, one.pop(DTYPE).median - reading.pop(DTYPE))
    reading["W4A16"] = max(reading["W4A16"], unpacking(rate))
    found = compared(one, {name: beyond + seconds for name, seconds in reading.items()})
    return Measured(found.ratio, found.note, found.facts | {"rate": rate, "beyond": beyond})


@cache
def compiled_steps(run: Run) -> dict[tuple[str, int], Samples]:
    """Seconds of compiled steps by (format, tokens), and of reading the bytes of unquantized weights.

    All are timed in alternation.
    """
    wanted = [(name, rows) for name in ("W8A8", "W4A16", None) for rows in (1, WIDE)] + [("W8A16", 1)]
    prompt = prompt_of(CACHED)
    calls = {(name or DTYPE, rows): repeatable_step(target(name), prompt, rows) for name, rows in wanted}
    calls[READING] = torch.ones(bytes_read(target(None).decoder) // 4).sum
    return in_turn(calls, repeats=5 * run.repeats)


def unpacking(rate: float) -> float:
    """Seconds of the int4 GEMVs with every matrix cached and the head read at `rate` (bytes/s).

    0 if the packed kernels, which unpack codes as they read, do not run.
    """
    shape = common.model(DTYPE).shape
    head = shape.vocab_size * shape.hidden_size / rate  # 8 bits per weight
    return matmuls_in_cache(target("W4A16").decoder) + head if cpu.packed_kernels() else 0.0


@claim(
    "quantized/predicted-error", "<= 0.25",
    f"eager steps, {DTYPE}; predicted: launch overhead, from a decoder of the same depth with few bytes, plus the "
    "format's bytes at the rate of unquantized matmuls; value: the worst format",
    unit="",
    says="The predicted time of an eager decode step with quantized weights is {percent} off in the worst format",
)  # fmt: skip
def predicted_error(run: Run) -> Measured:
    """|measured / predicted - 1|. The prediction uses no timed step of the model itself (lesson 10)."""
    lm = common.model(DTYPE)
    made = {name or DTYPE: common.in_format(name) for name in (None, *FORMATS)}
    # decoders of as many layers whose bytes are negligible: the time of their steps is launch overhead
    narrow = overhead_proxy(lm.shape, DTYPE)
    proxies = {DTYPE: narrow} | {name: DecoderTarget(quantize_model(narrow.decoder, name)) for name in FORMATS}
    launching = {name: sample.median for name, sample in timed_steps(proxies, run).items()}
    moved = {name: bytes_read(of.decoder) for name, of in made.items()}
    rate = moved[DTYPE] / machine.linears(lm.shape, DTYPE, "cpu")
    predicted = {name: launching[name] + moved[name] / rate for name in made}
    found = compared(timed_steps(made, run), predicted)
    return Measured(found.ratio, found.note, found.facts | {"bytes": moved, "rate": rate, "launching": launching})


def timed_steps(targets: Mapping[str, Target], run: Run) -> dict[str, Samples]:
    """Seconds of eager one-token steps after CACHED tokens, the targets in alternation."""
    prompt = prompt_of(CACHED)
    return in_turn({name: repeatable_step(of, prompt) for name, of in targets.items()}, repeats=5 * run.repeats)


def compared(found: Mapping[str, Samples], predicted: Mapping[str, float]) -> Measured:
    """The error of the worst format."""
    asserted = {name: Samples((seconds,) * len(found[name].times)) for name, seconds in predicted.items()}
    errors = {name: off_by(Ratio.of(found[name], asserted[name])) for name in found}
    worst = max(errors, key=lambda name: errors[name].value)
    note = f"measured over predicted: {listed({name: found[name].median / predicted[name] for name in found})}"
    facts = {"predicted": dict(predicted), "steps": {name: of.times for name, of in found.items()}, "worst": worst}
    return Measured(errors[worst], note, facts)


def unrounded() -> Decoder:
    """The readable decoder in fp32."""
    return common.model("fp32").target().decoder


@cache
def ids(part: str, count: int | None = None) -> list[list[int]]:
    """Windows of one of the texts."""
    return quality.windows(common.model("fp32").tokenizer(text(part), verbose=False).input_ids)[:count]


def reading(decoder: Decoder, windows: int | None, among=None) -> Reading:
    """Evaluate a decoder on the first windows of the evaluation text (None: all). among: as in `quality.read`."""
    flat = [token for window in ids("evaluation", windows) for token in window]
    return quality.read(logits_of(decoder), flat, among=among)


def logits_of(decoder: Decoder) -> quality.Logits:
    """A function ids (T,) -> logits (T, V) for `quality.read`."""
    of = DecoderTarget(decoder)
    return lambda ids: logits_along(of, ids, len(ids))


@cache
def wide(windows: int | None) -> Reading:
    """The reading of the fp32 decoder on the same text."""
    return reading(unrounded(), windows)


def windows_of(run: Run) -> int | None:
    """Number of windows in a run; None: all."""
    return 2 if run.quick else None


def perplexity(run: Run, format: str, **options) -> Measured:
    """Perplexity with weights in this format over that in fp32, on the same windows.

    Calibrated on 16 windows (4 for W8A8). options: of quantize_model. The samples are mean nll per window, in nats per
    token.
    """
    reference = wide(windows_of(run))
    calibration = ids("calibration", 4 if format == "W8A8" else 16)
    found = reading(quantize_model(unrounded(), format, windows=calibration, **options), windows_of(run))
    change = quality.ratio(found, reference)
    means = [Samples(tuple(float(part.mean()) for part in of.nll)) for of in (found, reference)]
    note = f"{found.perplexity:.2f} against {reference.perplexity:.2f}, {found.tokens:,} tokens"
    note += f"; the most likely token is the same at {quality.agreement(found, reference):.1%} of the positions"
    facts = {"unit": "nats per token of a window", "perplexity": found.perplexity, "fp32": reference.perplexity}
    return Measured(Ratio(change.value, change.low, change.high, *means), note, facts)


@claim(
    "int8-weight-only/perplexity", "<= 1.005", TEXT, dtype="fp32",
    says="W8A16 weights make the perplexity {number} times that of fp32",
)  # fmt: skip
def weight_only_quality(run: Run) -> Measured:
    return perplexity(run, "W8A16")


@claim("int8/perplexity", "<= 1.010", TEXT, dtype="fp32", says="W8A8 makes the perplexity {number} times that of fp32")
def int8_quality(run: Run) -> Measured:
    return perplexity(run, "W8A8")


@claim(
    "int4/perplexity", "<= 1.010", TEXT + "; groups of 32 aligned with the file's own, head in 8 bits", dtype="fp32",
    says="W4A16 weights make the perplexity {number} times that of fp32",
)  # fmt: skip
def int4_quality(run: Run) -> Measured:
    """Quality of W4A16. The packaged file has blocks of 4 bits, which favours int4 g32.

    The rounded weights are stored as fp32: the packed kernel, which rounds nothing more in fp32, is slow for many
    tokens. A test checks that both give the same reading.
    """
    return perplexity(run, "W4A16", values=True)


@claim(
    "gptq-3bit/recovered", ">= 0.5",
    f"smol-draft, layers in {GPTQ}: the perplexity that rounding to nearest loses; calibrated on other articles",
    unit="", dtype="fp32", says="At 3 bits, GPTQ recovers {percent} of the perplexity that rounding to nearest loses",
)  # fmt: skip
def recovered(run: Run) -> Measured:
    """1 - GPTQ's loss over the loss of rounding to nearest, on weights that were never rounded to few bits.

    These are smol-draft's layers, stored in 8 bits and trained since they were copied. Only tokens in the vocabulary of
    its trimmed head count. The interval comes from resampling windows.
    """
    decoder, count = decoder_of(load("smol-draft", device="cpu", dtype="fp32").network), windows_of(run)
    among = torch.zeros(decoder.config.vocab_size, dtype=torch.bool).index_fill(0, decoder.kept, True)
    calibration = ids("calibration", 2 if run.quick else None)
    options = dict(head=None, windows=calibration, values=True)
    made = {"fp32": decoder} | {name: quantize_model(decoder, name, **options) for name in (GPTQ, f"gptq {GPTQ}")}
    found = {name: reading(of, count, among=among) for name, of in made.items()}
    exact, nearest, compensated = (np.array([[float(x.sum()), len(x)] for x in of.nll]) for of in found.values())
    value, low, high = share(exact, nearest, compensated)
    kept = {name: of.perplexity for name, of in found.items()}
    means = [Samples(tuple((part[:, 0] / part[:, 1]).tolist())) for part in (compensated, nearest)]
    note = f"perplexity {listed(kept)}; {found['fp32'].tokens:,} tokens"
    return Measured(Ratio(value, low, high, *means), note, {"perplexity": kept, "unit": "nats per token of a window"})


def share(exact: np.ndarray, nearest: np.ndarray, better: np.ndarray) -> tuple[float, float, float]:
    """Share of the perplexity lost by `nearest` that `better` does not lose. Each (windows, 2): sum and count."""

    def of(sampled: Sequence) -> np.ndarray:
        sums = [part[sampled].sum(-2) for part in (exact, nearest, better)]
        p, q, r = (np.exp(part[..., 0] / part[..., 1]) for part in sums)
        return 1 - (r - p) / (q - p)

    value, low, high = resampled(of, len(exact))
    return (value, low, high) if len(exact) > 1 else (value, -math.inf, math.inf)
