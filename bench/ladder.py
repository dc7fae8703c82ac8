"""Claims of lesson 11: every rung of the ladder in turn on each question, llama.cpp among them where it is installed.

Speeds are of decoding alone, from the first token on: no rung changes the prefill. Whole requests stand beside them.
A rung counts if the perplexity of its weights is within 1% of that in fp32. The best that counts is compared
with the peer; it is chosen on the texts that it is judged by.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache

import asking
import pricing
import rungs
from asking import DTYPE, answered, asked
from by_question import rate_ratio, tokens_per_forward
from registry import Measured, NotMeasured, Run, claim
from speculation import GROUNDED

from lessons_lib.decoding import llamacpp
from lessons_lib.decoding.ladder import Rung, best, step_gains

KINDS = {"free": (("writing",), 6), "grounded": (GROUNDED, 2)}  # categories, and questions of each
OURS = "the fastest rung whose perplexity is within 1% of that in fp32; decoding alone, 128 tokens each"
THEIRS = f"transformers generate, greedy, dynamic cache, eager, {DTYPE}"
LLAMACPP = "llama.cpp through llama-cpp-python, the same file, threads and run"


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
    return against(run, list(KINDS), [need_peers()[0]], [name for name in named(run) if " + " not in name])


@claim(
    "ladder/grounded/vs-llamacpp", ">= 3",
    f"{LLAMACPP}, the better of plain and its prompt lookup; input-grounded prompts; ours: {OURS}",
)  # fmt: skip
def grounded_peer(run: Run) -> Measured:
    return against(run, ["grounded"], need_peers(), list(named(run)))


def need_peers() -> list[str]:
    """llama.cpp's names, plain first. NotMeasured where it is not installed."""
    if lack := llamacpp.missing():
        raise NotMeasured(f"not measured: {lack}")
    return list(rungs.peers())


def named(run: Run) -> dict[str, Rung]:
    """Our rungs, with their prices, by name."""
    return {rung.name: rung for rung in pricing.ladder(run.quick, run.repeats)}


def against(run: Run, kinds: Sequence[str], slow: Sequence[str], ours: Sequence[str]) -> Measured:
    """The best of our rungs that counts over the best of theirs, on the texts of these kinds together."""
    found = [row for kind in kinds for row in rows(run, kind)]
    counts, took = rungs.count(run.quick), speeds(found, {*slow, *ours})
    theirs, winner = best(took, slow), best(took, [name for name in ours if rungs.target_of(name) in counts])
    ratio = rate_ratio(decoding(found, theirs), decoding(found, winner))
    requests = rate_ratio(whole(found, theirs), whole(found, winner))
    note = (
        f"{winner} {took[winner]:.0f} tokens/s, {theirs} {took[theirs]:.0f}; whole requests {requests.value:.2f}; "
        f"{differing(found, winner)}"
    )
    table = {kind: table_of(run, rows(run, kind)) for kind in kinds}
    facts = {"best": winner, "peer": theirs, "requests": [requests.value, requests.low, requests.high]}
    facts["tokens_per_forward"] = tokens_per_forward(found, winner)
    if theirs in named(run):
        predicted = {row["rung"]: row["predicted"] for row in table[kinds[0]] if not row["peer"]}
        facts["predicted"] = predicted[winner] / predicted[theirs]
    return Measured(ratio, note, facts | {"rungs": table, "questions": found, **rungs.facts(run.quick)})


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
        if name in ladder:
            of = rungs.target_of(name)
            row |= {"below": ladder[name].below, "gain": gains[name], "counts": of in counts}
            row |= {"predicted": ladder[name].speed(expected(run, name, found))}
            row |= {"moved": ladder[name].price.moved(rungs.CACHED)}
        said.append(row)
    return said


def expected(run: Run, name: str, found: Sequence[dict]) -> list:
    """Traces of the texts that plain decoding wrote, as this rung's guesses are expected to go through them."""
    of, _, who = name.partition(" + ")
    return [pricing.counted(who, row["prompt"], row["new"], rungs.runs(of, run.quick), run) for row in found]
