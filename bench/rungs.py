"""The rungs of lesson 11's ladder: what runs, who guesses, and what each is expected to cost before it is timed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median

import asking
import assisted
import fitting
from asking import CONTEXT, DTYPE, ours, prompt_of
from by_question import Made
from registry import Run
from speculation import LOOKUP

from lessons_lib import Medusa, PromptLookup, generate
from lessons_lib.decoding import llamacpp
from lessons_lib.decoding.ladder import Price, Rung
from lessons_lib.decoding.peers import static_and_compiled
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.replay import Recording, replay, replay_draft
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.decoding.targets.base import Target
from lessons_lib.decoding.timing import clocked_transformers, seen_prefill, twin
from lessons_lib.decoding.trace import Step
from lessons_lib.measure import hardware
from lessons_lib.measure.clock import in_turn
from lessons_lib.measure.kernels import DTYPES
from lessons_lib.models import tiny
from lessons_lib.training import evaluate

FORMATS = {"int8 weights": "int8-weight-only", "int4": "int4", "int8": "int8"}  # rung -> weights of model.target
LOOKUPS = (2, 10)  # guesses of llama.cpp's prompt lookup: what it advises for CPUs, and its default
GUESSERS = ("lookup", "draft", "medusa")
CACHED = 300  # tokens behind which parts are timed


@cache
def targets(quick: bool) -> dict[str, Target]:
    """Compiled targets by rung, the unrounded one first; a quick run has one format beside it."""
    formats = dict(list(FORMATS.items())[-1:]) if quick else FORMATS
    return {"compiled": asking.compiled()} | {name: rounded(weights) for name, weights in formats.items()}


@cache
def peers() -> dict[str, llamacpp.LlamaCpp]:
    """llama.cpp, plain and with its prompt lookup; none where it is not installed."""
    if llamacpp.missing():
        return {}
    names = {0: "llama.cpp"} | {count: f"llama.cpp + lookup of {count}" for count in LOOKUPS}
    return {name: llamacpp.LlamaCpp(asking.model().name, CONTEXT, count) for count, name in names.items()}


def proposer(who: str, of: Target, run: Run) -> Proposer:
    """Who guesses for a target: prompt lookup by its defaults, smol-draft, or smol-medusa with the target's best tree."""
    if who == "lookup":
        return PromptLookup(**LOOKUP)
    return drafter(of) if who == "draft" else Medusa(fitting.heads(), fitting.fitted(of, run.repeats).tree)


def methods(run: Run, ids: list[int]) -> dict[str, Callable[[], Made]]:
    """Every rung, and the peers, as calls that write a text behind a prompt."""
    found = {
        "generate": partial(by_transformers, ids),
        "generate, compiled": partial(by_transformers, ids, **static_and_compiled(CONTEXT)),
        "decoder": partial(ours, asking.eager(), ids),
    }
    for name, of in targets(run.quick).items():
        found[name] = partial(ours, of, ids)
        found |= {f"{name} + {who}": partial(ours, of, ids, proposer(who, of, run)) for who in GUESSERS}
    return found | {name: partial(by_peer, of, ids) for name, of in peers().items()}


def by_transformers(ids: list[int], **options) -> Made:
    new, timeline = clocked_transformers(asking.model().network, ids, asking.TOKENS, **options)
    return new, seen_prefill(ids, timeline)


def by_peer(of: llamacpp.LlamaCpp, ids: list[int]) -> Made:
    new, timeline = of.write(ids, asking.TOKENS)
    return new, seen_prefill(ids, timeline)


@cache
def ladder(quick: bool, repeats: int) -> list[Rung]:
    """All rungs with their prices, from bytes, this machine's rates, and parts that were timed without any text."""
    run, (loop, guess) = Run(quick), around(repeats)
    base, eager = library(repeats), asking.eager()
    v = asking.costs_of(eager, (1, asking.COMPILED[-1]), repeats, CACHED)
    found = [
        Rung("generate", None, "transformers, dynamic cache, eager", base["transformers"]),
        Rung("generate, compiled", "generate", "static cache and a compiled step", base["compiled"]),
        Rung("decoder", "generate", "the readable decoder", replace(base["decoder"], v=v, around=loop)),
    ]
    for name, of in targets(quick).items():
        below, change = ("decoder", "one compiled step") if name == "compiled" else ("compiled", "rounded weights")
        v = asking.costs_of(of, of.widths, repeats, CACHED)
        price = Price(weight_bytes(of), entry(), rates().read_bandwidth, of.capacity, v=v, around=loop)
        found.append(Rung(name, below, change, price, rounded=name != "compiled"))
        found += [Rung(f"{name} + {who}", name, "guesses", with_guesses(price, who, of, run, guess)) for who in GUESSERS]
    return found


def library(repeats: int) -> dict[str, Price]:
    """Steps whose products stay calls of a library: transformers', eager and compiled, and our eager one."""
    shape, dtype = asking.model().shape, DTYPES[DTYPE]
    narrow = {"transformers": TransformersTarget(tiny(shape.layers, dtype)), "decoder": twin(shape, DTYPE)}
    steps = {name: repeatable_step(of, [1] * CACHED) for name, of in narrow.items()}
    launch = {name: samples.median for name, samples in in_turn(steps, repeats=5 * repeats).items()}
    price = Price(shape.weights * dtype.itemsize, entry(), rates().matvec_bandwidth[DTYPE])
    return {name: replace(price, launch=seconds) for name, seconds in launch.items()} | {
        "compiled": replace(price, slots=CONTEXT)
    }


def with_guesses(price: Price, who: str, of: Target, run: Run, guess: float) -> Price:
    """A draft's calls take what was timed; Medusa's heads, a share of a forward in every step; looking up, nothing."""
    if who == "draft":
        return replace(price, guess=guess)
    share = max(fitting.fitted(of, run.repeats).c.values()) if who == "medusa" else 0.0
    return replace(price, around=price.around + share * price.forward(CACHED))


def around(repeats: int) -> tuple[float, float]:
    """(seconds between two forwards of plain decoding, seconds of one guess of the draft's)."""
    trace = generate(asking.eager(), prompt_of(32), max_new_tokens=16, min_new_tokens=16).trace[1:]
    chain = in_turn({"chain": assisted.chain_step(asking.eager(), prompt_of(CACHED))}, repeats=repeats)["chain"]
    return median(step.t_total - step.t_forward for step in trace), chain.median / assisted.GAMMA


@cache
def rates() -> hardware.Hardware:
    return hardware.probe("cpu", [DTYPE])


def entry() -> int:
    """Bytes of one token's keys and values."""
    return asking.model().shape.kv_elements(1) * DTYPES[DTYPE].itemsize


def counted(who: str | None, ids: Sequence[int], new: Sequence[int], of: Target, run: Run) -> Sequence[Step]:
    """The trace that a text is expected to have: replayed, of Medusa foretold by its card."""
    text = Recording(ids, new)
    if who == "medusa":
        return foretold(len(ids), len(new) - 1, fitting.fitted(of, run.repeats))
    if who == "draft":
        steps = replay_draft(evaluate.right_in_steps(assisted.drafting(), ids, new), Constant(assisted.GAMMA))
        return [replace(step, length_before=len(ids) + step.length_before) for step in steps]
    return replay(text, proposer(who, of, run) if who else Proposer())


def foretold(prompt: int, tokens: int, by: fitting.Fitted) -> list[Step]:
    """Equal steps that commit what the tree is expected to: tokens need not be whole."""
    each = fitting.expected_tokens(by.tree, fitting.accuracies())
    nodes = len(by.tree.choices)
    return [Step(prompt + round(i * each), 1 + nodes, nodes, committed=each) for i in range(round(tokens / each))]
