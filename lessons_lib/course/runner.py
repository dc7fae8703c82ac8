"""`lessons run`: execute lessons with papermill into build/, one line each, and collect pages, index and scorecard."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill

from lessons_lib.course import render
from lessons_lib.course.lessons import CLAIMS, QUIET, Lesson, UsageError, escaped, find, overrides, parameters, select
from lessons_lib.paths import ROOT
from lessons_lib.progress import line

BUILD = ROOT / "build"


@dataclass(frozen=True)
class Result:
    """Outcome of one lesson; `failure` is empty on success. seconds: execution alone."""

    lesson: Lesson
    seconds: float
    failure: str = ""


def run(asked: list[str], given: dict[str, str], build: Path = BUILD, lessons: list[Lesson] | None = None) -> int:
    """Execute the selected lessons with the given parameters; returns the exit status.

    Every name is checked before anything runs. UsageError lists the valid lessons, parameters or models.
    """
    chosen = select(find() if lessons is None else lessons, asked)
    defaults = {lesson: parameters(lesson) for lesson in chosen}
    injected = overrides(defaults, absolute(given))
    prepare_all([{**defaults[lesson], **injected[lesson]} for lesson in chosen])
    build.mkdir(parents=True, exist_ok=True)
    results = [execute(lesson, injected[lesson], build) for lesson in chosen]
    finish(results, build)
    return int(any(result.failure for result in results))


def prepare_all(taken: list[dict[str, Any]]) -> None:
    """Fetch and convert every model named by these parameters; UsageError if one cannot run.

    A lesson that takes a pair of models, `model` and `draft`, runs families other than Llama, too, by transformers' own
    forward pass.
    """
    models, ours = {}, set()  # name or folder -> (device, dtype); those that our decoder has to compute
    for values in taken:
        named = [values[name] for name in ("model", "draft") if name in values]
        models |= {model: (values["device"], values["dtype"]) for model in named}
        if "draft" not in values:
            ours.update(named)
    for model, (device, dtype) in models.items():
        prepare(model, device, dtype, model in ours)


def absolute(given: dict[str, str]) -> dict[str, str]:
    """The same settings with relative folders of checkpoints made absolute, since kernels run in another folder."""
    folders = {name: Path(given[name]).resolve() for name in ("model", "draft") if name in given}
    return given | {name: str(folder) for name, folder in folders.items() if (folder / "config.json").is_file()}


def prepare(model: str, device: str, dtype: str, ours: bool) -> None:
    """Fetch and convert a model before the lessons, so that no lesson's time includes a download.

    ours: our decoder has to compute it. UsageError if it does not, for a known name before it is fetched, and for the
    errors of `load`.
    """
    from lessons_lib.models import ModelUnavailable, load
    from lessons_lib.models.decoder import decoder_config
    from lessons_lib.models.hub import HUB, LLAMA_LIKE

    refusal = UsageError(f"The lessons take Llama-like models such as {', '.join(LLAMA_LIKE)}, and {model} is none.")
    if ours and model in HUB and model not in LLAMA_LIKE:
        raise refusal
    try:
        with line(f"model {Path(model).name}"):
            config = load(model, device=device, dtype=dtype).network.config
    except (ValueError, ModelUnavailable) as error:
        raise UsageError(str(error)) from error
    if ours:
        try:
            decoder_config(config)
        except ValueError as error:
            raise refusal from error


def execute(lesson: Lesson, values: dict[str, Any], build: Path) -> Result:
    """Execute one notebook into build/ and render its page; a failure is stored in the result, not raised."""
    target, start, failure = build / lesson.path.name, time.perf_counter(), ""
    hidden = None if sys.stdout.isatty() else True  # None: tqdm shows the bar where stderr is a terminal
    with line(lesson.name) as said:
        try:
            papermill.execute_notebook(
                escaped(lesson.path),
                escaped(target),
                values,
                kernel_name="python3",
                cwd=lesson.path.parent,
                progress_bar={"desc": lesson.name, "leave": False, "disable": hidden},
                extra_arguments=QUIET,
            )
        except papermill.PapermillExecutionError as error:
            failure = located(f"{error.ename}: {str(error.evalue).strip()}", target)
        except Exception as error:  # a kernel that died or never started
            failure = located(f"{type(error).__name__}: {error}", target)
        said[0] = f"FAILED in {failure}" if failure else "ok"
    seconds = time.perf_counter() - start
    if target.exists():
        render.write_page(target, target.with_suffix(".html"))
    return Result(lesson, seconds, failure)


def located(said: str, target: Path) -> str:
    """The first line of an error, after the cell that was started last, if papermill wrote the notebook.

    Example: cell [7] (`x = load(model)`): ... The number counts started cells, since a kernel may die before it reports
    its own count.
    """
    said = said.strip().splitlines()[0]
    cells = nbformat.read(target, as_version=4).cells if target.exists() else []
    begun = [c for c in cells if c.cell_type == "code" and c.metadata.get("papermill", {}).get("start_time")]
    if not begun:
        return said
    opening = next((text for text in begun[-1].source.splitlines() if text.strip()), "")
    return f"cell [{len(begun)}] (`{opening[:60]}`): {said}"


def finish(results: list[Result], build: Path) -> None:
    """Write scorecard and index; print their paths and the failures."""
    from lessons_lib.measure import machine
    from lessons_lib.measure.results import collect, load, write_scorecard

    done = [build / result.lesson.path.name for result in results]
    scores = collect([path for path in done if path.exists()])
    about = ", ".join(f"{name} {value}" for name, value in (machine.host() | machine.versions()).items())
    write_scorecard(scores, build, machine=about, claims=load(CLAIMS))
    (build / "index.html").write_text(render.index(results), encoding="utf-8")
    print(f"\nRead {shown(build / 'index.html')} and {shown(build / 'scorecard.html')}.")
    failed = [result for result in results if result.failure]
    if failed:
        print(f"{len(failed)} of {len(results)} lessons failed:")
    for result in failed:
        print(f"  {result.lesson.name}: {result.failure}")


def shown(path: Path) -> str:
    """A path for display: relative to the working directory if it is below."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
