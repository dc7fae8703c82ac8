"""Claims of lesson 10: how fast rounded decoders are, against generate, themselves in wide weights, and prediction.

All are compiled, in bf16 beside the rounded weights where the machine computes in it and else in fp32; transformers
runs in the same format.
"""

from collections.abc import Callable
from functools import cache

import generation
from asking import DTYPE, listed, prompt_of
from generation import CONTEXT, ours, theirs
from medusa import off_by
from registry import Measured, Run, claim

from lessons_lib.decoding.peers import by_transformers
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget
from lessons_lib.measure import hardware
from lessons_lib.measure.clock import Ratio, Samples, compare, in_turn, timed
from lessons_lib.measure.kernels import DTYPES
from lessons_lib.models import ModelUnavailable
from lessons_lib.models.libraries import LIBRARIES, by_library
from lessons_lib.models.quantized import FORMATS, bytes_kept, bytes_read

WIDE = 9  # rows: a token and eight guesses
CACHED = 64  # tokens behind which steps are timed
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}; ours: CompiledTarget, {CONTEXT} positions"


@cache
def target(weights: str | None) -> CompiledTarget:
    """Compiled for one row and for WIDE; None: weights as wide as everything else."""
    of = generation.model(DTYPE).target(weights=weights)
    return CompiledTarget(of.decoder, of.tokenizer, of.eos, CONTEXT, (1, WIDE))


def vs_generate(weights: str, run: Run, **facts) -> Measured:
    of = target(weights)
    timed(ours(of, 4), repeats=1, warmup=1)  # compiles
    ratio = compare(theirs(DTYPE, run.tokens), ours(of, run.tokens), repeats=run.repeats, warmup=1)
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
