"""Write RESULTS.md from bench/results: a sentence for every claim, by lesson, what misses its bar first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import run  # registers every claim
from bench.common import Claim
from lessons_lib.course.lessons import CLAIMS, Lesson
from lessons_lib.course.render import title
from lessons_lib.measure import results, tables
from lessons_lib.measure.results import Result
from lessons_lib.paths import ROOT
from tools import techniques
from tools.predictions import factor, misses, predictions

RESULTS = ROOT / "RESULTS.md"
TOPICS = {  # the first word of a claim's name: the lesson that it belongs to
    "generate": "prefill_decode", "cache": "kv_cache", "decoder": "static_cache_compile",
    "serving": "continuous_batching", "simulator": "continuous_batching",
    "assisted": "assisted_decoding", "draft": "assisted_decoding", "adaptive": "assisted_decoding",
    "prompt-lookup": "prompt_lookup", "lookahead": "jacobi_lookahead", "medusa": "medusa",
    "int4": "quantization", "int8": "quantization", "int8-weight-only": "quantization", "gptq-3bit": "quantization",
    "quantized": "quantization", "ladder": "ladder", "layerskip": "layerskip",
    "streaming": "streaming_llm",
}  # fmt: skip
MISSED = "What missed its bar"
BARS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
OPENING = (
    "Every claim of the course has a bar that was set before it was measured, an interval and a baseline. A claim "
    "that misses its bar stays here and says why. Baseline and details are folded; raw samples, machine and versions "
    "are in `bench/results`."
)


def page(lessons: list[Lesson], folder: Path = CLAIMS.parent) -> str:
    """The text of RESULTS.md. folder: claims.json and the raw results."""
    claims = results.load(folder / "claims.json")
    gpu = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))  # what bench.on_gpu stored
    short = results.short_of_bar(claims)
    written = "<!-- `make bench` and `make lessons` write this page. -->"
    parts = [f"{written}\n\n# Results", OPENING, summary(claims, folder)]
    if short:
        parts += [f"## {MISSED}", *(entry(claim, gpu) for claim in short)]
    for lesson in lessons:
        own = [claim for claim in claims if claim not in short and topic(claim) == lesson.name.partition("_")[2]]
        if own:
            parts += [f"## [{title(lesson.read())}](notebooks/{lesson.path.name})", *(entry(one, gpu) for one in own)]
    rows = techniques.technique_cells(folder)
    parts += ["## Techniques side by side", TECHNIQUES, tables.markdown(techniques.TECHNIQUES, rows), *on_gpu(gpu)]
    off = map(off_row, misses(predictions(lessons, folder)))
    parts += ["## Predictions off by more than a factor of 1.25", OFF, tables.markdown(OFF_HEAD, off)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def summary(claims: list[Result], folder: Path, page: str = "this page") -> str:
    """How many claims reach their bar, and where they were measured. page: where all of them are."""
    reached = sum(claim.holds is True for claim in claims)
    host = json.loads((folder / "claims.json").read_text(encoding="utf-8"))["host"]
    dates = [claim.date for claim in claims]
    reach = f"{reached} of {len(claims)} claims reach the bar set before measuring; {page} begins with the others."
    but = ", unless a claim names another machine" if any(claim.host for claim in claims) else ""
    return f"{reach} Measured on: {results.described(host)}, {min(dates)} to {max(dates)}{but}."


def topic(row: Result) -> str:
    """Short name of the lesson that a claim belongs to."""
    return TOPICS[row.claim.partition("/")[0]]


def entry(row: Result, gpu: dict) -> str:
    """A claim: its sentence, why it misses its bar, and the rest folded."""
    claim = run.CLAIMS[row.claim]
    reason = f" {claim.missed}" if row.holds is False and claim.missed else ""
    facts = [f"Baseline: {row.baseline}", *filter(None, row.note.split("; ")), *gpu_fact(row.claim, gpu)]
    raw = f"bench/results/{row.claim.replace('/', '-')}.json"
    found = f"[raw samples]({raw})" if row.measured is not None else "no samples"
    facts.append(f"{row.date}{row.host and f', on {row.host}'}; {found}")
    bullets = "\n".join(f"- {fact}" for fact in facts)
    return f"{sentence(claim, row)}{reason}\n\n<details><summary>{row.claim}</summary>\n\n{bullets}\n\n</details>"


def sentence(claim: Claim, row: Result) -> str:
    """The result in plain words, with interval and bar."""
    sign, limit = row.bar.split()
    if row.measured is None:
        return f"Not measured: {row.note}; bar: {BARS[sign]} {limit}."
    said = claim.says.format(**values(row))
    unit = "percent" if "{percent}" in claim.says else "number"
    words = row.interval.words(partial(number, row, unit=unit)) if row.interval else ""
    interval = f"; {'lowest to highest of ' if (row.runs or 0) > 1 else ''}{words}" if words else ""
    limit = number(row, float(limit), unit) if unit == "percent" else limit
    return f"**{said}**{interval}; bar: {BARS[sign]} {limit}."


def values(row: Result) -> dict[str, str]:
    """The measured value in the three forms that a claim's sentence may ask for."""
    plain, percent = (number(row, row.measured, unit) for unit in ("number", "percent"))
    return {"times": f"{plain} times", "percent": percent, "number": plain}


def number(row: Result, value: float, unit: str) -> str:
    """Format a value of this claim, as a percentage or as fine as its bar."""
    return f"{100 * value:.3g}%" if unit == "percent" else results.as_fine_as(row.bar, value)


# --- Links of other pages to claims

LINK = re.compile(r'\[([^\]]*)\]\([^ )]+ "([^"]+)"\)')


def linked(text: str, lessons: list[Lesson], folder: Path = CLAIMS.parent) -> str:
    """A page of docs/ with its links to claims up to date: [value](section of RESULTS.md "name of the claim").

    A link's text becomes the claim's value as in its sentence, unless it is the claim's name. Raises ValueError for a
    claim that is not measured.
    """
    rows = {row.claim: row for row in results.load(folder / "claims.json") if row.measured is not None}

    def link(found: re.Match) -> str:
        text, name = found.groups()
        if name not in rows:
            raise ValueError(f"There is no measured claim {name}; there are {', '.join(rows)}.")
        (form,) = re.findall(r"{(\w+)}", run.CLAIMS[name].says)
        said = name if text == name else values(rows[name])[form]
        return f'[{said}](../RESULTS.md#{section(rows[name], lessons)} "{name}")'

    return LINK.sub(link, text)


def section(row: Result, lessons: list[Lesson]) -> str:
    """Anchor of the section of RESULTS.md that has a claim."""
    if results.short_of_bar([row]):
        return slug(MISSED)
    return next(slug(title(lesson.read())) for lesson in lessons if topic(row) == lesson.name.partition("_")[2])


def slug(heading: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- What was measured on a GPU

TECHNIQUES = "Speedups are from the claims above. Published numbers are for other models and machines."
GPU_HEAD = ("weights", "eager", "compiled", "CUDA graph", "limit of memory bandwidth")


def gpu_fact(name: str, gpu: dict) -> Iterator[str]:
    """The same claim on a GPU, if it was measured there."""
    if name in gpu["serving"]:
        value, low, high, *_ = gpu["serving"][name]
        device = gpu["serving on"]["host"]["device"]
        interval = f", {tables.number(low)} to {tables.number(high)}" if low < high else ", one run"
        yield f"on an {device}: {tables.number(value)} times{interval}"


def on_gpu(gpu: dict) -> list[str]:
    """A table of decode steps on a GPU."""
    rows = [[name, *(f"{of[how]:.3g} ms" if of.get(how) else "-" for how in ("eager", "compiled", "graph", "limit"))]
            for name, of in gpu["steps"].items()]  # fmt: skip
    head = f"Milliseconds of a decode step of the default model on an {gpu['steps on']['host']['device']}:"
    return ["## On a GPU", head, tables.markdown(GPU_HEAD, rows)]


# --- Predictions that were off

OFF_HEAD = ("lesson", "what", "predicted", "measured", "off by a factor of")
OFF = "The lessons give the reasons that we know. All other predictions were within a factor of 1.25."


def off_row(one: Result) -> list[str]:
    amounts = [f"{tables.number(value)} {one.unit}".strip() for value in (one.predicted, one.measured)]
    return [one.lesson, one.claim, *amounts, f"{factor(one):.2f}"]
