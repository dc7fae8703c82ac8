"""Write what visitors see first: README's generated parts, RESULTS.md, the picture, and the lessons' first cells.

README: its badges and picture, six results, and the table of lessons. Badges and links to Colab need the repository's
address, which pyproject.toml has under project.urls; without it they are left out. No lesson is executed.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from lessons_lib.course.display import save
from lessons_lib.course.lessons import CLAIMS, Lesson, find
from lessons_lib.course.render import title
from lessons_lib.measure import results, tables
from lessons_lib.paths import ROOT
from tools import report, store, techniques
from tools.drawings import predictions

README = ROOT / "README.md"
CHOOSE = ROOT / "docs" / "choose.md"
WORKFLOW = ".github/workflows/tests.yml"
LESSONS = ("lesson", "question", "to read", "to run")
TOGETHER = "ladder/grounded/vs-generate"
SIX = ("technique", "times as fast (interval)", "compared with", "beside the official implementation")
SHOWN = {  # six techniques of techniques.KNOWN that have a peer: what they are
    "continuous batching": "requests join and leave at every step; total throughput",
    "draft model": "a small model drafts, one pass checks; slower beside a compiled one",
    "prompt lookup, answers from a given text": "copied tokens as draft tokens",
    "LayerSkip": "the first layers draft; needs training; easy texts",
    "everything combined, free writing": "compiled, W4A8, prompt lookup",
    "everything combined, answers from a given text": "the same",
}
QUESTIONS = {  # of lessons whose opening asks none
    "01": "Why does the first token take longer than the next one?",
    "02": "How much work does a KV cache save, and what does it cost?",
    "03": "When does compiling a decode step make it faster?",
    "04": "How can attention be exact without ever holding its matrix of scores?",
    "05": "How can many requests share one model when nobody knows how long each will take?",
    "13": "Can a model draft for itself with its own first layers?",
    "16": "How can a text go on for ever in constant memory, and what is forgotten on the way?",
}
TIME = r"{} time: (\d+(?: to \d+)?) minutes?"


def main() -> None:
    """Write README, RESULTS, the numbers of docs/choose.md, the picture, and the first cell of each lesson."""
    lessons = find()
    for lesson in lessons:
        nb = lesson.read()
        store.put_setup(nb, lesson.name, store.address())
        store.write(nb, lesson.path)
    save(predictions.predictions(), ROOT / "imgs" / "predictions.png")
    write(report.RESULTS, report.page(lessons))
    write(CHOOSE, report.linked(CHOOSE.read_text(encoding="utf-8"), lessons))
    write(README, filled(README.read_text(encoding="utf-8"), lessons))


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def filled(text: str, lessons: list[Lesson], folder: Path = CLAIMS.parent) -> str:
    """README's text with its generated parts anew. folder: of claims.json. Raises ValueError if a marker is missing."""
    address = store.address()
    text = between(text, "badges", badges(address))
    text = between(text, "headline", headline(folder))
    found = predictions.collect(lessons, folder)
    text = between(text, "picture", f"![{predictions.alt(found, predictions.misses(found))}](imgs/predictions.png)")
    text = between(text, "results", six_results(folder))
    return between(text, "lessons", lesson_table(lessons, address))


def between(text: str, marker: str, content: str) -> str:
    """Replace the text between <!-- marker:begin --> and <!-- marker:end -->. Raises ValueError if they are missing."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"README needs the lines {begin} and {end} once each.")
    head, tail = text.split(begin)[0], text.split(end)[1]
    return f"{head}{begin}\n{content}\n{end}{tail}".replace(f"{begin}\n\n{end}", f"{begin}\n{end}")


def badges(address: str) -> str:
    """The state of the tests; "" without an address on GitHub."""
    repository = store.on_github(address)
    if not repository:
        return ""
    tests = f"https://github.com/{repository}/actions/workflows/{Path(WORKFLOW).name}"
    return f"[![tests]({tests}/badge.svg)]({tests})"


def headline(folder: Path) -> str:
    """What three techniques together gain, in a sentence."""
    claim = claims(folder)[TOGETHER]
    whole = re.search(r"([\d.]+) with the prefill", claim.note)[1]
    return (
        "Together, compiling, quantizing and prompt lookup make a small model decode answers from a given text "
        f"**{tables.number(claim.measured)} times as fast** as transformers' `generate`, not compiled, on two CPU "
        f"cores ({claim.interval.words(tables.number)}; {whole} times with the time to read that text)."
    )


def claims(folder: Path) -> dict[str, results.Result]:
    """The claims of claims.json, by name."""
    return {claim.claim: claim for claim in results.load(folder / "claims.json")}


def six_results(folder: Path) -> str:
    """Six techniques: how much faster than what, how it compares with an official implementation."""
    found, rows = claims(folder), []
    for technique in (technique for technique in techniques.KNOWN if technique.name in SHOWN):
        claim, peer = found[technique.speed], found[technique.peer]
        gain = f"**{tables.number(claim.measured)}** ({claim.interval.cell(tables.number)})"
        if "prefill" in claim.baseline:
            gain += ", decoding"
        beside = f"{tables.number(peer.measured)} times as fast as {technique.peer_name}"
        rows.append([f"{technique.name} ({SHOWN[technique.name]})", gain, techniques.over(technique, claim), beside])
    summary = report.summary([*found.values()], folder, "[RESULTS.md](RESULTS.md)")
    return f"{tables.markdown(SIX, rows)}\n\n{summary}"


def lesson_table(lessons: list[Lesson], address: str) -> str:
    """A row per lesson: its name with links, its question, minutes to read and to run."""
    return tables.markdown(LESSONS, [lesson_row(lesson, address) for lesson in lessons])


def lesson_row(lesson: Lesson, address: str) -> list[str]:
    nb = lesson.read()
    name = f"[{title(nb) or lesson.name}](notebooks/{lesson.path.name}) {store.link(address, lesson.name)}"
    return [name.strip(), question(lesson, nb), *(f"{minutes} min" for minutes in times(nb))]


def times(nb: nbformat.NotebookNode) -> list[str]:
    """Minutes to read and to run, as the opening says."""
    opening = " ".join(nb.cells[0].source.split())
    return [re.search(TIME.format(kind), opening)[1] for kind in ("Reading", "Running")]


def question(lesson: Lesson, nb: nbformat.NotebookNode) -> str:
    """The first question of a lesson's opening; if it asks none, the one of QUESTIONS."""
    prose = " ".join(line for line in nb.cells[0].source.splitlines() if not line.startswith("#"))
    found = re.search(r"[^.!?]*\?", prose)
    return found.group().strip(" *_") if found else QUESTIONS[lesson.number]


if __name__ == "__main__":
    main()
