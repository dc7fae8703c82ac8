"""Claims of lesson 11: every rung of the ladder in turn on each question, llama.cpp among them where it is installed.

Speeds are of decoding alone, from the first token on: no rung changes the prefill. Whole requests stand beside them.
A rung counts if the perplexity of its weights is within 1% of that in fp32. The best that counts is compared
with the peer; it is chosen on the texts that it is judged by. llama.cpp runs the packaged file (Q4_1) and what its own
quantizer makes of that file; where all its formats take part, so does each whose perplexity is at most 1% above our
best's.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache

from bench import asking, pricing, rungs
from bench.asking import DTYPE, answered, asked
from bench.by_question import rate_ratio, tokens_per_forward
from bench.registry import Measured, NotMeasured, Run, claim
from bench.speculation import GROUNDED
from lessons_lib.decoding import llamacpp
from lessons_lib.decoding.ladder import TOLERATED, Rung, best, counting, step_gains

KINDS = {"free": (("writing",), 6), "grounded": (GROUNDED, 2)}  # categories, and questions of each
OURS = (
    "the fastest rung whose perplexity is within 1% of that in fp32; the course's own questions; decoding alone, "
    "128 tokens each"
)
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}"
LLAMACPP = "llama.cpp through llama-cpp-python, the same file, threads and run"
LLAMACPP_BEST = (
    f"llama.cpp in the fastest of {', '.join(llamacpp.FORMATS)} whose perplexity is at most 1% above our best's; "
    "requantized from the same file, same threads and run"
)


@cache
def rows(run: Run, kind: str) -> list[dict]:
    """All rungs and peers on the questions of one kind; each row with the text that plain decoding wrote."""
    pricing.ladder(run.quick, run.repeats)  # priced before any text is timed
    text = lambda ids, out: {"prompt": list(ids), "new": out.ids}  # noqa: E731
    settings = {"rungs": sorted(rungs.methods(run, asking.prompt_of(8)))}
    categories, count = KINDS[kind]
    methods = lambda ids: rungs.methods(run, ids)  # noqa: E731
    return answered(asked(f"ladder/{kind}", run, categories, count, methods, settings, also=text))


def decoding(found: Sequence[dict], name: str) -> list[tuple[float, float]]:
    """For each text (tokens behind the first, seconds behind it)."""
    return [(row[name]["tokens"] - 1, row[name]["seconds"] - row[name]["prefill"]) for row in found]


def whole(found: Sequence[dict], name: str) -> list[tuple[float, float]]:
    """For each text (tokens, seconds), prefill included."""
    return [(row[name]["tokens"], row[name]["seconds"]) for row in found]


def speeds(found: Sequence[dict], names: Collection[str], of: Callable = decoding) -> dict[str, float]:
    """Tokens per second of each rung over all texts together."""
    sums = {name: [sum(column) for column in zip(*of(found, name), strict=True)] for name in names}
    return {name: tokens / seconds for name, (tokens, seconds) in sums.items()}


@claim("ladder/free/vs-generate", ">= 6", f"{THEIRS}; free writing; ours: {OURS}")
def free(run: Run) -> Measured:
    return against(run, ["free"], ["generate"], list(named(run)))


@claim("ladder/grounded/vs-generate", ">= 12", f"{THEIRS}; input-grounded prompts; ours: {OURS}")
def grounded(run: Run) -> Measured:
    return against(run, ["grounded"], ["generate"], list(named(run)))


@claim("ladder/plain/vs-llamacpp", ">= 1.2", f"{LLAMACPP}, plain; free and grounded prompts; ours: {OURS}, no guesses")
def plain(run: Run) -> Measured:
    return against(run, list(KINDS), unguessed(packaged(need_peers())), unguessed(named(run)))


@claim(
    "ladder/grounded/vs-llamacpp", ">= 3",
    f"{LLAMACPP}, the better of plain and its prompt lookup; input-grounded prompts; ours: {OURS}",
)  # fmt: skip
def grounded_peer(run: Run) -> Measured:
    return against(run, ["grounded"], packaged(need_peers()), list(named(run)))


@claim(
    "ladder/plain/vs-llamacpp-best", ">= 1.2",
    f"{LLAMACPP_BEST}, plain; free and grounded prompts; ours: {OURS}, no guesses",
)  # fmt: skip
def plain_best(run: Run) -> Measured:
    return against(run, list(KINDS), unguessed(need_peers()), unguessed(named(run)), as_good=True)


@claim(
    "ladder/grounded/vs-llamacpp-best", ">= 3",
    f"{LLAMACPP_BEST}, plain or with its prompt lookup; input-grounded prompts; ours: {OURS}",
)  # fmt: skip
def grounded_best(run: Run) -> Measured:
    return against(run, ["grounded"], need_peers(), list(named(run)), as_good=True)


def need_peers() -> list[str]:
    """llama.cpp's names in all formats. NotMeasured where it is not installed."""
    if lack := llamacpp.missing():
        raise NotMeasured(f"not measured: {lack}")
    return list(rungs.peers())


def packaged(peers: Collection[str]) -> list[str]:
    """Those of llama.cpp's names that run the packaged file as it is."""
    return [name for name in peers if rungs.target_of(name) == f"llama.cpp {llamacpp.FORMATS[0]}"]


def unguessed(names: Collection[str]) -> list[str]:
    """Those that decode plainly."""
    return [name for name in names if name == rungs.target_of(name)]


def named(run: Run) -> dict[str, Rung]:
    """Our rungs, with their prices, by name."""
    return {rung.name: rung for rung in pricing.ladder(run.quick, run.repeats)}


def against(
    run: Run, kinds: Sequence[str], slow: Sequence[str], ours: Sequence[str], as_good: bool = False
) -> Measured:
    """The best of our rungs that counts over the best of theirs, on the texts of these kinds together.

    as_good: of theirs only those count whose perplexity is at most 1% above that of our best. NotMeasured if none is.
    """
    found = [row for kind in kinds for row in rows(run, kind)]
    counts, took = rungs.count(run.quick), speeds(found, {*slow, *ours})
    winner = best(took, [name for name in ours if rungs.target_of(name) in counts])
    peers = by_format(run, took, slow, winner) if as_good else {}
    theirs = best(took, near(peers, winner) if as_good else slow)
    ratio = rate_ratio(decoding(found, theirs), decoding(found, winner))
    requests = rate_ratio(whole(found, theirs), whole(found, winner))
    note = (
        f"{winner} {took[winner]:.0f} tokens/s, {theirs} {took[theirs]:.0f}; whole requests {requests.value:.2f}; "
        f"{differing(found, winner)}{said(peers)}"
    )
    table = {kind: table_of(run, rows(run, kind)) for kind in kinds}
    facts = {"best": winner, "peer": theirs, "requests": [requests.value, requests.low, requests.high]}
    facts |= {"formats": peers} if peers else {}
    facts["tokens_per_forward"] = tokens_per_forward(found, winner)
    if theirs in named(run):
        predicted = {row["rung"]: row["predicted"] for row in table[kinds[0]] if not row["peer"]}
        facts["predicted"] = predicted[winner] / predicted[theirs]
    return Measured(ratio, note, facts | {"rungs": table, "questions": found, **rungs.facts(run.quick)})


def by_format(run: Run, took: dict[str, float], peers: Collection[str], ours: str) -> dict[str, dict[str, float]]:
    """The fastest peer of each format: its speed, and its perplexity over that of our rung."""
    read = {name: reading.perplexity for name, reading in rungs.readings(run.quick).items()}
    fastest = {rungs.target_of(name): name for name in sorted(peers, key=took.__getitem__)}  # the last one stays
    reference = read[rungs.target_of(ours)]
    return {name: {"speed": took[name], "perplexity": read[of] / reference} for of, name in fastest.items()}


def near(peers: dict[str, dict[str, float]], ours: str) -> set[str]:
    """The peers whose perplexity is at most TOLERATED above that of our rung. NotMeasured if none is."""
    if found := counting({name: of["perplexity"] for name, of in peers.items()}, 1.0):
        return found
    raise NotMeasured(
        f"not measured: no format of llama.cpp comes within {TOLERATED:.0%} of {ours} in perplexity{said(peers)}"
    )


def said(peers: dict[str, dict[str, float]]) -> str:
    """Speed and perplexity of llama.cpp's formats as the end of a sentence; "" without any."""
    return "".join(
        f"; {name} {of['speed']:.0f} tokens/s at {of['perplexity']:.3f} of our perplexity" for name, of in peers.items()
    )


def differing(found: Sequence[dict], name: str) -> str:
    """How far its texts lie from what the unrounded weights prefer."""
    most = max(row[name]["shortfall"] for row in found)
    return f"tokens fall short of the unrounded weights' favourites by at most {most:.2g} logits"


def table_of(run: Run, found: Sequence[dict]) -> list[dict]:
    """For every rung what was predicted and measured, and its gain over the rung below."""
    ladder, timed = named(run), [name for name in found[0] if isinstance(found[0][name], dict)]
    all_names = [*(name for name in ladder if name in timed), *(name for name in timed if name not in ladder)]
    took, requests = speeds(found, all_names), speeds(found, all_names, whole)
    gains, counts = step_gains(list(ladder.values()), took), rungs.count(run.quick)
    said = []
    for name in all_names:
        row = {"rung": name, "speed": took[name], "whole": requests[name], "peer": name not in ladder}
        row["samples"] = [tokens / seconds for tokens, seconds in decoding(found, name)]
        row["counts"] = rungs.target_of(name) in counts
        if name in ladder:
            row |= {"below": ladder[name].below, "gain": gains[name]}
            row |= {"predicted": ladder[name].speed(expected(run, name, found))}
            row |= {"moved": ladder[name].price.moved(rungs.CACHED)}
        said.append(row)
    return said


def expected(run: Run, name: str, found: Sequence[dict]) -> list:
    """Traces of the texts that plain decoding wrote, as this rung's guesses are expected to go through them."""
    of, _, who = name.partition(" + ")
    return [pricing.counted(who, row["prompt"], row["new"], rungs.runs(of, run.quick), run) for row in found]
