"""Claims of lesson 10: how fast rounded decoders are, against generate, themselves in wide weights, and prediction.

All but the predicted steps are compiled, in bf16 beside the rounded weights where the machine computes in it and else
in fp32; transformers runs in the same format.
"""

from collections.abc import Callable, Mapping
from functools import cache

import torch

from bench import generation
from bench.asking import DTYPE, listed, prompt_of
from bench.generation import CONTEXT, ours
from bench.registry import Measured, Run, claim, off_by
from lessons_lib.decoding.peers import by_transformers
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.decoding.targets.base import Target
from lessons_lib.decoding.timing import products_in_cache, twin
from lessons_lib.measure import kernels
from lessons_lib.measure.clock import Ratio, Samples, compare, in_turn, timed
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.kernels import DTYPES
from lessons_lib.models import ModelUnavailable
from lessons_lib.models.libraries import LIBRARIES, by_library
from lessons_lib.models.quantized import bytes_kept, bytes_read, quantized
from lessons_lib.quantization import cpu

FORMATS = ("int8", "int8-weight-only", "int4")  # of the lesson; int4-int8 is one of lesson 11
WIDE = 9  # rows: a token and eight guesses
READING = "reading", 0  # beside the steps, no row of any
CACHED = 64  # tokens behind which steps are timed
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}; ours: CompiledTarget, {CONTEXT} positions"


@cache
def target(weights: str | None) -> CompiledTarget:
    """Compiled for one row and for WIDE; None: weights as wide as everything else."""
    of = generation.model(DTYPE).target(weights=weights)
    return CompiledTarget(of.decoder, of.tokenizer, of.eos, CONTEXT, (1, WIDE))


def vs_generate(weights: str, run: Run, **facts) -> Measured:
    """transformers' generate over ours with weights in this format. facts: what is kept beside bytes and seconds."""
    of = target(weights)
    ratio = generation.over_generate(of, DTYPE, run)
    read, kept = bytes_read(of.decoder), bytes_kept(of.decoder)
    said = of.problem or f"a step reads {read / 1e6:.0f} MB; {kept / 1e6:.0f} MB kept"
    facts |= {"bytes_read": read, "bytes_kept": kept, "compile_seconds": of.compile_seconds}
    return Measured(ratio, said, facts)


def by_libraries(run: Run) -> dict[str, float | str]:
    """Tokens per second of transformers' generate on the model as libraries quantize it, or why that is not to be had.

    One after another, since seven of these models at a time would fill the memory; a quick run goes without.
    """
    return {} if run.quick else {name: tokens_per_second(name, run.tokens // 4) for name in LIBRARIES}


def tokens_per_second(library: str, count: int) -> float | str:
    """Of transformers' generate for `count` new tokens with this library's weights, or why there are none here."""
    try:
        network = by_library(library, DTYPES[DTYPE])
    except ModelUnavailable as lack:
        return str(lack)
    prompt = generation.model(DTYPE).tokenizer(generation.PROMPT).input_ids
    return count / timed(lambda: by_transformers(network, prompt, count), repeats=3, warmup=1).median


@claim("int4/vs-generate", ">= 4.5", THEIRS + ", groups of 32, head in 8 bits")
def int4_speed(run: Run) -> Measured:
    return vs_generate("int4", run, libraries=by_libraries(run))


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
    found = compiled_steps(run)
    v = {name: Ratio.of(found[name, WIDE], found[name, 1]) for name in ("int8", "int4", DTYPE)}
    steps = {f"{name} {rows} rows": samples.times for (name, rows), samples in found.items() if rows}
    return Measured(v["int8"], f"v({WIDE}): {listed({n: r.value for n, r in v.items()})}", {"steps": steps})


@claim(
    "quantized/compiled-predicted-error", "<= 0.25",
    f"compiled steps, {DTYPE}: what wide weights take beyond their bytes, and the format's bytes at the rate at which "
    "this machine reads, or what int4 takes to unpack; worst format",
    unit="",
)  # fmt: skip
def compiled_predicted_error(run: Run) -> Measured:
    """|measured / predicted - 1| of one row; of the steps timed for the prediction only that with wide weights counts.

    For int4 the larger of reading and unpacking.
    """
    steps = compiled_steps(run)
    one = {name: samples for (name, rows), samples in steps.items() if rows == 1}
    rate = bytes_read(target(None).decoder) / steps[READING].median
    reading = {name: bytes_read(target(None if name == DTYPE else name).decoder) / rate for name in one}
    beyond = max(0.0, one.pop(DTYPE).median - reading.pop(DTYPE))
    reading["int4"] = max(reading["int4"], unpacking(rate))
    found = compared(one, {name: beyond + seconds for name, seconds in reading.items()})
    return Measured(found.ratio, found.note, found.facts | {"rate": rate, "beyond": beyond})


@cache
def compiled_steps(run: Run) -> dict[tuple[str, int], Samples]:
    """Seconds of compiled steps by (format, rows), all in turn, and of reading as many bytes as wide weights have."""
    wanted = [(name, rows) for name in ("int8", "int4", None) for rows in (1, WIDE)] + [("int8-weight-only", 1)]
    calls = {(name or DTYPE, rows): step(name, rows) for name, rows in wanted}
    calls[READING] = torch.ones(bytes_read(target(None).decoder) // 4).sum
    return in_turn(calls, repeats=5 * run.repeats)


def unpacking(rate: float) -> float:
    """Seconds that products of one row in int4 take with every matrix in a cache, and the head's to read at `rate`
    (bytes/s); 0 where the packed kernels, which unpack codes as they read, do not run."""
    shape = generation.model(DTYPE).shape
    head = shape.vocab_size * shape.hidden_size / rate  # 8 bits a weight
    return products_in_cache(target("int4").decoder) + head if cpu.packed_kernels() else 0.0


@claim(
    "quantized/predicted-error", "<= 0.25",
    f"eager steps, {DTYPE}: launching, of a twin without bytes in each format, and the format's bytes at the rate of "
    "products with wide weights; worst format",
    unit="",
)  # fmt: skip
def predicted_error(run: Run) -> Measured:
    """|measured / predicted - 1|. No step of the model itself is timed for the prediction (lesson 10)."""
    lm = generation.model(DTYPE)
    made = {name or DTYPE: lm.target(weights=name) for name in (None, *FORMATS)}
    launching = {name: sample.median for name, sample in timed_steps(twins(lm.shape), run).items()}
    moved = {name: bytes_read(of.decoder) for name, of in made.items()}
    rate = moved[DTYPE] / kernels.linears(lm.shape, DTYPE, "cpu")
    predicted = {name: launching[name] + moved[name] / rate for name in made}
    found = compared(timed_steps(made, run), predicted)
    return Measured(found.ratio, found.note, found.facts | {"bytes": moved, "rate": rate, "launching": launching})


def twins(shape: ModelConfig) -> dict[str, DecoderTarget]:
    """In every format a decoder of as many layers whose bytes vanish: what its steps take is launching."""
    narrow = twin(shape, DTYPE)
    return {DTYPE: narrow} | {name: DecoderTarget(quantized(narrow.decoder, name)) for name in FORMATS}


def timed_steps(targets: Mapping[str, Target], run: Run) -> dict[str, Samples]:
    """Seconds of eager steps of one token behind CACHED ones, the targets in turn."""
    prompt = prompt_of(CACHED)
    return in_turn({name: repeatable_step(of, prompt) for name, of in targets.items()}, repeats=5 * run.repeats)


def compared(found: Mapping[str, Samples], predicted: Mapping[str, float]) -> Measured:
    """The worst format's error."""
    asserted = {name: Samples((seconds,) * len(found[name].times)) for name, seconds in predicted.items()}
    errors = {name: off_by(Ratio.of(found[name], asserted[name])) for name in found}
    worst = max(errors, key=lambda name: errors[name].value)
    note = f"measured over predicted: {listed({name: found[name].median / predicted[name] for name in found})}"
    facts = {"predicted": dict(predicted), "steps": {name: of.times for name, of in found.items()}, "worst": worst}
    return Measured(errors[worst], note, facts)


def step(weights: str | None, rows: int = 1) -> Callable[[], None]:
    """A call of a compiled step of so many rows behind CACHED tokens. weights: as of `target`."""
    return repeatable_step(target(weights), prompt_of(CACHED), rows)
