"""What the course predicted and what it then measured: the stored lessons' scorecards, and the benches' raw results.

Left out are identities: pairs that agree exactly (counts, or a formula checked against itself), and those whose
prediction was computed from what the same run counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from lessons_lib.course.lessons import Lesson
from lessons_lib.measure import results
from lessons_lib.measure.results import Result

# In the note of a result whose prediction uses the steps of the run that it predicts
LEFT_OUT = "counted in the run"
# Such results without the note
ALSO_COUNTED = {"the whole trace, continuous", "speed of decoding alone, by tokens over overhead"}


def predictions(lessons: list[Lesson], folder: Path) -> list[Result]:
    """All pairs of numbers, predicted and measured. folder: where claims.json and the raw results are."""
    found = [*results.collect([lesson.path for lesson in lessons]), *of_benches(folder)]
    return [
        one for one in found
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
