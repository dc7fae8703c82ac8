"""What the course predicted and what it then measured: the stored lessons' scorecards, and the benches' raw results.

Left out are identities: pairs that agree exactly (counts, or a formula checked against itself), and those whose
prediction was computed from what the same run counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from lessons_lib.course.lessons import Lesson
from lessons_lib.measure import results
from lessons_lib.measure.results import Result

# In the note of a result whose prediction uses the steps of the run that it predicts
LEFT_OUT = "counted in the run"
# Such results without the note
ALSO_COUNTED = {"the whole trace, continuous"}
# What lessons 06 to 12 call their predictions, said so that it can be understood without the lesson
DRAFT, DOWN = "a draft model over plain decoding", "the down projection"
MASS = "attention weight outside the top 3.4% of the keys"
PLAINLY = {
    "speed over plain, math, gamma 8": f"{DRAFT}, math, 8 draft tokens",
    "c, a draft forward pass over a target forward pass": "a forward pass of the draft model over one of the target",
    "tokens per forward pass, ten nodes, qa": "Medusa, tokens per pass with a tree of ten nodes, qa",
    "tokens per forward pass, ten nodes, code": "Medusa, tokens per pass with a tree of ten nodes, code",
    "no cache, free": "decoding without a KV cache, free writing",
    "no cache, grounded": "decoding without a KV cache, answers from a given text",
    "compiled, free": "our compiled decoder, free writing",
    "W4A8, free": "our compiled decoder with W4A8 weights, free writing",
    "W4A8, grounded": "our compiled decoder with W4A8 weights, answers from a given text",
    "generate, grounded": "transformers' generate, answers from a given text",
    "generate, compiled, free": "transformers' generate, compiled, free writing",
    "generate, compiled, grounded": "transformers' generate, compiled, answers from a given text",
    "best configuration over generate, free": "everything combined over generate, free writing",
    "best configuration over generate, grounded": "everything combined over generate, answers from a given text",
    "attention mass outside the top 3.4% of the keys": MASS,
    "the same without the first four tokens": f"{MASS}, without the first four tokens",
    "neurons that any of 8 neighbours needs, S = 90%": "neurons that any of 8 tokens in a row needs, 90% sparse",
    "W_down, 90% skipped, gather over dense": f"{DOWN} with 90% of its inputs skipped, gathered, over dense",
    "W_down, 90% skipped, in place over dense": f"{DOWN} with 90% of its inputs skipped, in place, over dense",
    "decode step, gate first, 90% left out, over dense": "a decode step without 90% of the neurons, over dense",
    "layerskip/vs-plain, full": "LayerSkip over plain decoding, drafting with the whole head",
}  # fmt: skip


def predictions(lessons: list[Lesson], folder: Path) -> list[Result]:
    """All pairs of numbers, predicted and measured. folder: where claims.json and the raw results are."""
    found = [*results.collect([lesson.path for lesson in lessons]), *of_benches(folder)]
    return [
        replace(one, claim=PLAINLY.get(one.claim, one.claim)) for one in found
        if one.ratio is not None and one.ratio > 0 and one.measured != one.predicted
        and LEFT_OUT not in one.note and one.claim not in ALSO_COUNTED
    ]  # fmt: skip


def of_benches(folder: Path) -> Iterator[Result]:
    """The predictions in the raw results of claims; the lesson is "bench"."""
    for claim in results.load(folder / "claims.json"):
        path = folder / f"{claim.claim.replace('/', '-')}.json"
        raw = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        predicted, steps = raw.get("predicted"), raw.get("steps")
        if isinstance(predicted, dict) and steps:  # seconds of a step in each format
            how = "compiled" if "compiled" in claim.claim else "eager"
            for name, seconds in predicted.items():
                yield Result("bench", f"{how} step, {name}", "s", seconds, median(steps[name]))
        elif isinstance(predicted, dict):  # speedups of several settings: (value, low, high) measured
            for name, speedup in predicted.items():
                yield Result("bench", f"{claim.claim}, {name}", "x", speedup, raw["measured"][name][0])
        elif predicted:
            yield Result("bench", claim.claim, "x", predicted, raw.get("after_prompt", claim.measured))
        if "expected" in raw:
            yield Result("bench", claim.claim, "tokens", raw["expected"], raw.get("together", claim.measured))


def misses(found: list[Result]) -> list[Result]:
    """Those off by more than 25% in either direction, the worst first."""
    off = [one for one in found if one.verdict != "within 25%"]
    return sorted(off, key=factor, reverse=True)


def factor(one: Result) -> float:
    """How far a prediction is off: max(r, 1/r) of r = measured / predicted."""
    return max(one.ratio, 1 / one.ratio)
