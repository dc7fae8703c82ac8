"""The rungs of lesson 11's ladder: what runs, who guesses, and what each is expected to cost before it is timed."""

from collections.abc import Callable
from functools import cache, partial

from bench import asking, assisted, fitting, generation
from bench.asking import CONTEXT, ours
from bench.by_question import Made
from bench.registry import Run
from bench.speculation import LOOKUP
from lessons_lib import DraftModel, Medusa, PromptLookup, native
from lessons_lib.data import text
from lessons_lib.decoding import llamacpp
from lessons_lib.decoding.ladder import counting
from lessons_lib.decoding.peers import static_and_compiled
from lessons_lib.decoding.probing import logits_along
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Adaptive
from lessons_lib.decoding.targets.base import Target
from lessons_lib.decoding.timing import clocked_transformers, seen_prefill
from lessons_lib.measure import quality
from lessons_lib.measure.speculation import WidthCurve, padded_cost
from lessons_lib.models.draft import decoder_of
from lessons_lib.models.quantized import bytes_kept, quantized
from lessons_lib.quantization import cpu

FORMATS = {"int8 weights": "int8-weight-only", "int4": "int4", "int8": "int8"}  # rung -> weights of model.target
FORMATS |= {} if native.problem() else {"int4-int8": "int4-int8"}  # slow without our kernels
LOOKUPS = (2, 10)  # guesses of llama.cpp's prompt lookup: what it advises for CPUs, and its default
READ = 8192  # tokens of text that quality is measured on
GUESSERS = ("lookup of 10", "adaptive lookup", "draft", "medusa")  # 10: the default of ours
# The adaptive lookup's, chosen by replaying the grounded questions that the claims do not ask:
LONGER = {"num_tokens": 10, "max_ngram": 5}
NARROW = (1, 3, 5, 11)  # token counts compiled for the light target, whose further rows cost most beside a plain one
# the one whose products of several rows stay cheap here, and whom others guess for
LIGHT = "int4-int8" if "int4-int8" in FORMATS else "int8" if cpu.integer_units() else "int8 weights"
CACHED = 300  # tokens behind which parts are timed


@cache
def targets(quick: bool) -> dict[str, Target]:
    """Compiled targets by rung, caches fitted to texts, the unrounded one first; a quick run has one format beside."""
    formats = {LIGHT: FORMATS[LIGHT]} if quick else FORMATS
    rounded = {name: asking.model().target(weights=weights).decoder for name, weights in formats.items()}
    decoders = {"compiled": asking.eager().decoder} | rounded
    widths = {"compiled": asking.COMPILED, LIGHT: NARROW}
    return {name: asking.run_once(of, widths.get(name, (1,)), fitted=True) for name, of in decoders.items()}


def guessed(name: str) -> bool:
    """Whether somebody guesses for the target of this name: every width takes a minute or more to compile."""
    return name in ("compiled", LIGHT)


@cache
def small() -> Target:
    """The draft as light as a light target needs it: compiled, its weights in 8 bits."""
    wide = decoder_of(assisted.draft().network, wide=True)
    return asking.run_once(quantized(wide, "int8-weight-only"), (1, 2))  # 2: behind a step whose guesses all held


@cache  # the tokenizers are compared once, not for every text
def drafter(target: Target) -> DraftModel:
    """The proposer of all texts that this target writes."""
    return DraftModel(small(), assisted.GAMMA)


def runs(name: str, quick: bool) -> Target:
    """What runs the rung of this name: its first part, before who guesses."""
    return targets(quick).get(target_of(name), asking.eager())


def target_of(name: str) -> str:
    """What runs a rung of this name: "int8" of "int8 + draft"."""
    return name.partition(" + ")[0]


def exact() -> Target:
    """What quality is compared with: the same model in fp32."""
    return generation.target("fp32")


@cache
def readings(quick: bool) -> dict[str, quality.Reading]:
    """How each target, and llama.cpp in each format, finds the text that quality is measured on."""
    ids = asking.model().tokenizer(text()[: 8 * READ], verbose=False).input_ids[: READ // 4 if quick else READ]
    on = {"fp32": exact(), "decoder": asking.eager()} | targets(quick)
    says = {name: lambda ids, of=of: logits_along(of, ids, len(ids)) for name, of in on.items()}
    says |= {name: of.logits for name, of in plain_peers().items()}
    return {name: quality.read(logits, ids) for name, logits in says.items()}


def count(quick: bool) -> set[str]:
    """What runs with a perplexity near enough to that in fp32; transformers' own ways are, on the unrounded weights."""
    found = {name: reading.perplexity for name, reading in readings(quick).items()}
    return (counting(found, found["fp32"]) - {"fp32"}) | {"generate", "generate, compiled"}


def facts(quick: bool) -> dict:
    """Quality beside fp32 and memory of targets and peers, what was compiled how long, what llama.cpp's files hold."""
    found = dict(readings(quick))
    reference = found.pop("fp32")
    changes = {name: quality.ratio(reading, reference) for name, reading in found.items()}
    return {
        "quality": {
            name: {
                "perplexity": reading.perplexity,
                "change": [changes[name].value, changes[name].low, changes[name].high],
                "agreement": quality.agreement(reading, reference),
            }
            for name, reading in found.items()
        },
        "held": {name: bytes_kept(of.decoder) for name, of in ({"decoder": asking.eager()} | targets(quick)).items()}
        | {name: sum(of.parts.values()) for name, of in plain_peers().items()},
        "tokens_read": reference.tokens,
        "perplexity_fp32": reference.perplexity,
        "compile_seconds": {name: getattr(of, "compile_seconds", {}) for name, of in targets(quick).items()},
        "problems": {name: of.problem for name, of in targets(quick).items() if getattr(of, "problem", None)},
        "llamacpp": {
            name: {"version": of.version, "built for": of.instructions, "parts": of.parts}
            for name, of in plain_peers().items()
        },
    }


@cache
def peers() -> dict[str, llamacpp.LlamaCpp]:
    """llama.cpp in each format, plain and with its prompt lookup; none where it is not installed."""
    formats = () if llamacpp.missing() else llamacpp.FORMATS
    suffixes = {0: ""} | {count: f" + lookup of {count}" for count in LOOKUPS}
    return {
        f"llama.cpp {weights}{suffix}": llamacpp.LlamaCpp(asking.model().name, CONTEXT, count, weights)
        for weights in formats
        for count, suffix in suffixes.items()
    }


def plain_peers() -> dict[str, llamacpp.LlamaCpp]:
    """llama.cpp in each format, without its lookup."""
    return {name: of for name, of in peers().items() if name == target_of(name)}


def proposer(who: str, of: Target, run: Run, v: WidthCurve = None) -> Proposer:
    """Who guesses: smol-draft, prompt lookup by its defaults or as long as pays by v (None: the curve that rungs were
    priced by), or smol-medusa with the tree that is fastest on this target."""
    if who == "lookup of 10":
        return PromptLookup(**LOOKUP)
    if who == "adaptive lookup":
        v = padded_cost(v or fitting.fitted(of, run.repeats).v)
        return PromptLookup(**LONGER, length=lambda: Adaptive(0, v, most=LONGER["num_tokens"], probe_every=None))
    return drafter(of) if who == "draft" else Medusa(fitting.heads(), fitting.fitted(of, run.repeats).tree)


def methods(run: Run, ids: list[int]) -> dict[str, Callable[[], Made]]:
    """Every rung, and the peers, as calls that write a text behind a prompt.

    The adaptive lookup gets a width curve timed just before the text: memory that other machines share is faster at one
    time than at another, and rows in plenty cost more beside a plain one when it is fast.
    """
    found = {
        "generate": partial(made_by_transformers, ids),
        "generate, compiled": partial(made_by_transformers, ids, **static_and_compiled(CONTEXT)),
        "decoder": partial(ours, asking.eager(), ids),
    }
    for name, of in targets(run.quick).items():
        found[name] = partial(ours, of, ids)
        if guessed(name):
            v = asking.costs_of(of, fitting.widths_of(of), run.repeats, CACHED)
            found |= {f"{name} + {who}": partial(ours, of, ids, proposer(who, of, run, v)) for who in GUESSERS}
    return found | {name: partial(by_peer, of, ids) for name, of in peers().items()}


def made_by_transformers(ids: list[int], **options) -> Made:
    """TOKENS new tokens by transformers' generate, and all that is known of its trace: the prefill."""
    new, timeline = clocked_transformers(asking.model().network, ids, asking.TOKENS, **options)
    return new, seen_prefill(ids, timeline)


def by_peer(of: llamacpp.LlamaCpp, ids: list[int]) -> Made:
    """The same by llama.cpp. RuntimeError for more tokens than its cache holds."""
    new, timeline = of.write(ids, asking.TOKENS)
    return new, seen_prefill(ids, timeline)
