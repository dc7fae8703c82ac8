"""Claims of lesson 11: every configuration of the ladder in turn on each question, and llama.cpp if installed.

Speeds are of decoding alone, after the first token, because no configuration changes the prefill. Whole requests are
given beside them. A configuration counts if the perplexity of its weights is within 1% of that in fp32. The fastest
that counts is compared with the peer; it is chosen on the same texts. llama.cpp runs the packaged file (Q4_1) and
files that its own quantizer makes of it. Where all its formats take part, a format counts if its perplexity is at most
1% above our fastest configuration's.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median

from bench import assisted, common, medusa, questions
from bench.common import DTYPE, Measured, NotMeasured, Run, claim, prompt_of
from bench.prompt_lookup import GROUNDED, LOOKUP
from bench.questions import CONTEXT, Made, answered, asked, decoding, ours, speed, tokens_per_pass
from lessons_lib import DraftModel, Medusa, PromptLookup, generate
from lessons_lib.data import text
from lessons_lib.decoding import llamacpp
from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.peers import static_and_compiled
from lessons_lib.decoding.prediction import (
    TOLERATED,
    Configuration,
    Recording,
    best,
    counting,
    replay,
    replay_draft,
)
from lessons_lib.decoding.probing import logits_along
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Adaptive, Constant
from lessons_lib.decoding.targets import Target
from lessons_lib.decoding.timing import clocked_transformers, launch_times, seen_prefill
from lessons_lib.measure import machine, quality
from lessons_lib.measure.clock import in_turn, rate_ratio
from lessons_lib.measure.cost import StepCost, WidthCurve, padded_cost, width_cost
from lessons_lib.measure.machine import DTYPES
from lessons_lib.models.draft import decoder_of
from lessons_lib.quantization import bytes_kept, bytes_read, cpu, quantize_model
from lessons_lib.quantization.cpu import native
from lessons_lib.training import evaluate

KINDS = {"free": (("writing",), 6), "grounded": (GROUNDED, 2)}  # categories, and number of questions of each
OURS = (
    "the fastest configuration whose perplexity is within 1% of fp32; the course's own questions; without the prefill, "
    "128 tokens each"
)
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}"
LLAMACPP = "llama.cpp through llama-cpp-python, the same file, threads and run"
LLAMACPP_BEST = (
    f"llama.cpp in the fastest of {', '.join(llamacpp.FORMATS)} whose perplexity is at most 1% above ours; "
    "requantized from the same file, same threads and run"
)
LOOKUPS = (2, 10)  # draft tokens of llama.cpp's prompt lookup: its advice for CPUs, and its default
READ = 8192  # tokens of the evaluation text
PROPOSERS = ("lookup of 10", "adaptive lookup", "draft", "medusa")  # 10 is our default
# Settings of the adaptive lookup, chosen by replay on grounded questions that the claims do not use.
LONGER = {"num_tokens": 10, "max_ngram": 5}
NARROW = (1, 3, 5, 11)  # widths compiled for the light target, where extra tokens are most expensive relative to one
CACHED = 300  # cached tokens when parts are timed


def formats() -> tuple[str, ...]:
    """The formats of the configurations. W4A8 needs our kernels in C++: without them it is slow."""
    return "W8A16", "W4A16", "W8A8", *(() if native.problem() else ("W4A8",))


def light() -> str:
    """The format whose target proposers run on: the one whose matmuls of several tokens stay cheap here."""
    return "W4A8" if "W4A8" in formats() else "W8A8" if cpu.integer_units() else "W8A16"


@cache
def rows(run: Run, kind: str) -> list[dict]:
    """All configurations and peers on the questions of one kind; each row includes plain decoding's text."""
    configurations(run)  # predict before any text is timed
    categories, count = KINDS[kind]
    return answered(asked(run, categories, count, partial(configuration_methods, run), texts=True))


def speeds(found: Sequence[dict], names: Collection[str]) -> dict[str, float]:
    """Tokens per second of each configuration over all texts together."""
    sums = {name: [sum(column) for column in zip(*decoding(found, name), strict=True)] for name in names}
    return {name: tokens / seconds for name, (tokens, seconds) in sums.items()}


@claim(
    "ladder/free/vs-generate", ">= 6", f"{THEIRS}; free writing; ours: {OURS}",
    says="Everything combined makes free writing {times} as fast as transformers' generate",
)  # fmt: skip
def free(run: Run) -> Measured:
    return against(run, ["free"], ["generate"], list(configurations(run)))


@claim(
    "ladder/grounded/vs-generate", ">= 12", f"{THEIRS}; answers from a given text; ours: {OURS}",
    says="Everything combined makes answers from a given text {times} as fast as transformers' generate",
)  # fmt: skip
def grounded(run: Run) -> Measured:
    return against(run, ["grounded"], ["generate"], list(configurations(run)))


@claim(
    "ladder/plain/vs-llamacpp", ">= 1.2",
    f"{LLAMACPP}, plain; both kinds of prompts; ours: {OURS}, no draft tokens",
    says="Without draft tokens, our fastest configuration is {times} as fast as llama.cpp on the packaged file",
)  # fmt: skip
def plain(run: Run) -> Measured:
    return against(run, list(KINDS), undrafted(packaged(need_peers())), undrafted(configurations(run)))


@claim(
    "ladder/grounded/vs-llamacpp", ">= 3",
    f"{LLAMACPP}, the better of plain and its prompt lookup; answers from a given text; ours: {OURS}",
    says="For answers from a given text, our fastest configuration is {times} as fast as llama.cpp on the packaged "
    "file",
)  # fmt: skip
def grounded_peer(run: Run) -> Measured:
    return against(run, ["grounded"], packaged(need_peers()), list(configurations(run)))


@claim(
    "ladder/plain/vs-llamacpp-best", ">= 1.2",
    f"{LLAMACPP_BEST}, plain; both kinds of prompts; ours: {OURS}, no draft tokens",
    says="Without draft tokens, our fastest configuration is {times} as fast as llama.cpp in its fastest format of "
    "equal quality",
)  # fmt: skip
def plain_best(run: Run) -> Measured:
    return against(run, list(KINDS), undrafted(need_peers()), undrafted(configurations(run)), as_good=True)


@claim(
    "ladder/grounded/vs-llamacpp-best", ">= 3",
    f"{LLAMACPP_BEST}, plain or with its prompt lookup; answers from a given text; ours: {OURS}",
    says="For answers from a given text, our fastest configuration is {times} as fast as llama.cpp in its fastest "
    "format of equal quality",
)  # fmt: skip
def grounded_best(run: Run) -> Measured:
    return against(run, ["grounded"], need_peers(), list(configurations(run)), as_good=True)


def need_peers() -> list[str]:
    """Names of llama.cpp's configurations in all formats. Raises NotMeasured if it is not installed."""
    if problem := llamacpp.missing():
        raise NotMeasured(f"not measured: {problem}")
    return list(peers())


def packaged(peers: Collection[str]) -> list[str]:
    """The llama.cpp configurations that run the packaged file as it is."""
    return [name for name in peers if target_of(name) == f"llama.cpp {llamacpp.FORMATS[0]}"]


def undrafted(names: Collection[str]) -> list[str]:
    """The configurations without drafting."""
    return [name for name in names if name == target_of(name)]


def against(
    run: Run, kinds: Sequence[str], slow: Sequence[str], ours: Sequence[str], as_good: bool = False
) -> Measured:
    """Speedup of the fastest of ours that counts over the fastest of theirs, on all texts of these kinds.

    as_good: of theirs, only those with a perplexity at most 1% above that of our fastest count. Raises NotMeasured if
    none does.
    """
    found = [row for kind in kinds for row in rows(run, kind)]
    counts, took = good_enough(run.quick), speeds(found, {*slow, *ours})
    # the fastest of ours that counts, and of theirs
    winner = best(took, [name for name in ours if target_of(name) in counts])
    peers = by_format(run, took, slow, winner) if as_good else {}
    theirs = best(took, near(peers, winner) if as_good else slow)
    # ratios, note and facts
    ratio = rate_ratio(decoding(found, theirs), decoding(found, winner))
    requests = speed(found, theirs, winner)
    gap = max(row[winner]["logit_gap"] for row in found)
    note = (
        f"{winner} {took[winner]:.0f} tokens/s, {theirs} {took[theirs]:.0f}; {requests.value:.2f} with the prefill; "
        f"logit gap under the unquantized weights at most {gap:.2g}{speeds_of(peers)}"
    )
    table = {kind: table_of(run, rows(run, kind)) for kind in kinds}
    facts = {"best": winner, "peer": theirs, "requests": [requests.value, requests.low, requests.high]}
    facts |= {"formats": peers} if peers else {}
    facts["tokens_per_pass"] = tokens_per_pass(found, winner)
    if theirs in configurations(run):
        predicted = {row["configuration"]: row["predicted"] for row in table[kinds[0]] if not row["peer"]}
        facts["predicted"] = predicted[winner] / predicted[theirs]
    return Measured(ratio, note, facts | {"configurations": table, "questions": found, **quality_facts(run.quick)})


def by_format(run: Run, took: dict[str, float], peers: Collection[str], ours: str) -> dict[str, dict[str, float]]:
    """The fastest peer of each format: its speed, and its perplexity relative to our configuration's."""
    read = {name: reading.perplexity for name, reading in readings(run.quick).items()}
    fastest = {target_of(name): name for name in sorted(peers, key=took.__getitem__)}  # the last (fastest) one stays
    reference = read[target_of(ours)]
    return {name: {"speed": took[name], "perplexity": read[of] / reference} for of, name in fastest.items()}


def near(peers: dict[str, dict[str, float]], ours: str) -> set[str]:
    """The peers whose perplexity is at most TOLERATED above our configuration's; raises NotMeasured if none is."""
    if found := counting({name: of["perplexity"] for name, of in peers.items()}, 1.0):
        return found
    raise NotMeasured(
        f"not measured: no format of llama.cpp comes within {TOLERATED:.0%} of {ours} in perplexity{speeds_of(peers)}"
    )


def speeds_of(peers: dict[str, dict[str, float]]) -> str:
    """Speed and perplexity of llama.cpp's formats as the end of a sentence; "" without any."""
    return "".join(
        f"; {name} {of['speed']:.0f} tokens/s at {of['perplexity']:.3f} times our perplexity"
        for name, of in peers.items()
    )


def table_of(run: Run, found: Sequence[dict]) -> list[dict]:
    """Predicted and measured speed of every configuration, and the one it builds on."""
    ladder, counts = configurations(run), good_enough(run.quick)
    names = [*ladder, *peers()]
    took, table = speeds(found, names), []
    for name in names:
        row = {"configuration": name, "speed": took[name], "peer": name not in ladder}
        row["samples"] = [tokens / seconds for tokens, seconds in decoding(found, name)]
        row["counts"] = target_of(name) in counts
        if name in ladder:
            predicted = ladder[name].cost.speed(*expected(run, name, found))
            row |= {"below": ladder[name].below, "predicted": predicted}
        table.append(row)
    return table


def expected(run: Run, name: str, found: Sequence[dict]) -> list[Sequence[StepStats]]:
    """Expected stats of this configuration on the texts that plain decoding generated."""
    of, _, who = name.partition(" + ")
    target = targets(run.quick).get(of, common.eager())
    return [expected_steps(who, row["prompt"], row["new"], target, run) for row in found]


@cache
def targets(quick: bool) -> dict[str, Target]:
    """Compiled targets by name, caches fitted to the texts, the unquantized one first; a quick run has one other."""
    rounded = {name: common.in_format(name).decoder for name in ((light(),) if quick else formats())}
    decoders = {"compiled": common.eager().decoder} | rounded
    widths = {"compiled": questions.COMPILED, light(): NARROW}
    return {name: questions.run_once(of, widths.get(name, (1,)), fitted=True) for name, of in decoders.items()}


def drafts_on(name: str) -> bool:
    """Whether proposers run on the target of this name: each additional width takes a minute or more to compile."""
    return name in ("compiled", light())


@cache
def small() -> Target:
    """The draft for a fast target: compiled, with 8-bit weights."""
    quantized = quantize_model(decoder_of(assisted.draft().network), "W8A16")
    return questions.run_once(quantized, (1, 2))  # 2: after a step whose draft tokens were all accepted


@cache  # the tokenizers are compared once, not for every text
def drafter(target: Target) -> DraftModel:
    """The proposer for all texts of this target."""
    return DraftModel(small(), assisted.GAMMA)


def target_of(name: str) -> str:
    """Name of a configuration's target: "W8A8" for "W8A8 + draft"."""
    return name.partition(" + ")[0]


@cache
def readings(quick: bool) -> dict[str, quality.Reading]:
    """Readings (nll, argmax tokens) of the evaluation text by each target and by llama.cpp in each format."""
    ids = common.model().tokenizer(text()[: 8 * READ], verbose=False).input_ids[: READ // 4 if quick else READ]
    on = {"fp32": common.eager("fp32"), "decoder": common.eager()} | targets(quick)
    says = {name: lambda ids, of=of: logits_along(of, ids, len(ids)) for name, of in on.items()}
    says |= {name: of.logits for name, of in plain_peers().items()}
    return {name: quality.read(logits, ids) for name, logits in says.items()}


def good_enough(quick: bool) -> set[str]:
    """Targets whose perplexity is close enough to fp32.

    transformers' own always count, since they use the unrounded weights.
    """
    found = {name: reading.perplexity for name, reading in readings(quick).items()}
    return (counting(found, found["fp32"]) - {"fp32"}) | {"generate", "generate, compiled"}


def quality_facts(quick: bool) -> dict:
    """Quality relative to fp32 and memory of targets and peers, compile times, contents of llama.cpp's files."""
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
        "held": {name: bytes_kept(of.decoder) for name, of in ({"decoder": common.eager()} | targets(quick)).items()}
        | {name: sum(of.parts.values()) for name, of in plain_peers().items()},
        "tokens_read": reference.tokens,
        "perplexity_fp32": reference.perplexity,
        "compile_seconds": {name: of.compile_seconds for name, of in targets(quick).items()},
        "problems": {name: of.problem for name, of in targets(quick).items() if of.problem},
        "llamacpp": {
            name: {"version": of.version, "built for": of.instructions, "parts": of.parts}
            for name, of in plain_peers().items()
        },
    }


@cache
def peers() -> dict[str, llamacpp.LlamaCpp]:
    """llama.cpp in each format, plain and with its prompt lookup; empty if it is not installed."""
    quantized = () if llamacpp.missing() else llamacpp.FORMATS
    suffixes = {0: ""} | {count: f" + lookup of {count}" for count in LOOKUPS}
    return {
        f"llama.cpp {weights}{suffix}": llamacpp.LlamaCpp(common.model().name, CONTEXT, count, weights)
        for weights in quantized
        for count, suffix in suffixes.items()
    }


def plain_peers() -> dict[str, llamacpp.LlamaCpp]:
    """llama.cpp in each format, without its prompt lookup."""
    return {name: peers()[name] for name in undrafted(peers())}


def proposer(who: str, of: Target, run: Run, v: WidthCurve | None = None) -> Proposer:
    """The proposer of this name: smol-draft, prompt lookup with its defaults or with adaptive length, or smol-medusa.

    v: width curve of the adaptive lookup (None: the curve used for the predicted costs). Medusa gets the tree that is
    fastest on this target.
    """
    if who == "lookup of 10":
        return PromptLookup(**LOOKUP)
    if who == "adaptive lookup":
        v = padded_cost(v or medusa.fitted(of, run.repeats).v)
        return PromptLookup(**LONGER, length=lambda: Adaptive(0, v, most=LONGER["num_tokens"], probe_every=None))
    return drafter(of) if who == "draft" else Medusa(medusa.heads(), medusa.fitted(of, run.repeats).tree)


def configuration_methods(run: Run, ids: list[int]) -> dict[str, Callable[[], Made]]:
    """Every configuration and peer as a call that generates text after a prompt.

    The adaptive lookup gets a width curve timed just before the text. Memory bandwidth shared with other machines
    varies over time, and when it is high, extra tokens cost more relative to a one-token pass.
    """
    theirs = partial(clocked_transformers, common.model().network)
    found = {
        "generate": partial(by_peer, theirs, ids),
        "generate, compiled": partial(by_peer, partial(theirs, **static_and_compiled(CONTEXT)), ids),
        "decoder": partial(ours, common.eager(), ids),
    }
    for name, of in targets(run.quick).items():
        found[name] = partial(ours, of, ids)
        if drafts_on(name):
            v = common.costs_of(of, medusa.widths_of(of), run.repeats, CACHED)
            found |= {f"{name} + {who}": partial(ours, of, ids, proposer(who, of, run, v)) for who in PROPOSERS}
    return found | {name: partial(by_peer, of.write, ids) for name, of in peers().items()}


def by_peer(write: Callable, ids: list[int]) -> Made:
    """TOKENS new tokens by transformers or llama.cpp; of their stats only the prefill is known."""
    new, timeline = write(ids, questions.TOKENS)
    return new, seen_prefill(ids, timeline)


@cache
def configurations(run: Run) -> dict[str, Configuration]:
    """By name, with predicted costs, from bytes, this machine's rates, and parts timed without any text."""
    shape, element = common.model().shape, DTYPES[DTYPE].itemsize
    loop, draft = host_times(run.repeats)
    launch = launch_times(shape, DTYPE, CACHED, repeats=5 * run.repeats)
    # matmuls of the library, at the rate at which they read unquantized weights
    moved, entry = shape.weights * element, shape.kv_elements(1) * element  # entry: a token's keys and values
    eager = StepCost(moved, entry, moved / machine.linears(shape, DTYPE, "cpu"))
    found = [
        Configuration("generate", None, replace(eager, launch=launch["transformers"])),
        Configuration("generate, compiled", "generate", replace(eager, slots=CONTEXT)),
        Configuration("decoder", "generate", replace(eager, launch=launch["decoder"], host=loop)),
    ]
    # compiled targets, at memory bandwidth: each plain, then with every proposer
    bandwidth = machine.probe("cpu", [DTYPE]).read_bandwidth
    for name, of in targets(run.quick).items():
        v = medusa.fitted(of, run.repeats).v if drafts_on(name) else None
        cost = StepCost(bytes_read(of.decoder), entry, bandwidth, launch=launch["compiled"], v=v, host=loop)
        found.append(Configuration(name, "decoder" if name == "compiled" else "compiled", cost))
        found += [
            Configuration(f"{name} + {who}", name, with_drafting(cost, who, of, run, draft))
            for who in PROPOSERS * drafts_on(name)
        ]
    return {configuration.name: configuration for configuration in found}


def with_drafting(cost: StepCost, who: str, of: Target, run: Run, draft: float) -> StepCost:
    """Add a proposer's cost: timed draft passes, a share of each pass for Medusa's heads, nothing for lookup."""
    if who != "medusa":
        return replace(cost, draft=draft if who == "draft" else 0.0)
    by = medusa.fitted(of, run.repeats)
    share = width_cost(by.heads_share)(1 + len(by.tree.choices))
    return replace(cost, host=cost.host + share * cost.forward(CACHED))


def host_times(repeats: int) -> tuple[float, float]:
    """(seconds between two forward passes of plain decoding, seconds of one draft token)."""
    stats = generate(common.eager(), prompt_of(32), max_new_tokens=16, min_new_tokens=16).stats[1:]
    step = assisted.chain_step(common.eager(), prompt_of(CACHED), small())
    chain = in_turn({"chain": step}, repeats=repeats)["chain"]
    return median(step.t_total - step.t_pass for step in stats), chain.median / assisted.GAMMA


def expected_steps(who: str, ids: Sequence[int], new: Sequence[int], of: Target, run: Run) -> Sequence[StepStats]:
    """Expected stats of a text: replayed, or for Medusa predicted from the accuracies on its card."""
    if who == "medusa":
        return predicted_steps(len(ids), len(new) - 1, medusa.fitted(of, run.repeats))
    if who == "draft":
        steps = replay_draft(evaluate.right_in_steps(small(), ids, new), Constant(assisted.GAMMA))
        return [replace(step, length_before=len(ids) + step.length_before) for step in steps]
    return replay(Recording(ids, new), proposer(who, of, run) if who else Proposer())


def predicted_steps(prompt: int, tokens: int, by: medusa.Fitted) -> list[StepStats]:
    """Equal steps that each commit the expected number of tokens, which need not be whole."""
    each = by.tree.expected_tokens(medusa.accuracies())
    nodes = len(by.tree.choices)
    return [StepStats(prompt + round(i * each), 1 + nodes, nodes, committed=each) for i in range(round(tokens / each))]
