"""`lessons run`: execute lessons with papermill into build/, one line each, and collect pages, index and scorecard."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
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
    if not chosen:
        raise UsageError("There are no lessons in notebooks/ yet.")
    defaults = {lesson: parameters(lesson) for lesson in chosen}
    injected = overrides(defaults, absolute(given))
    prepare_all([{**defaults[lesson], **injected[lesson]} for lesson in chosen])
    build.mkdir(parents=True, exist_ok=True)
    results = [execute(lesson, injected[lesson], build) for lesson in chosen]
    finish(results, build)
    return int(any(result.failure for result in results))


def prepare_all(taken: list[dict[str, Any]]) -> None:
    """Fetch and convert every model named by these parameters; UsageError if one cannot run."""
    models, pairs = (needed(values for values in taken if ("draft" in values) is pair) for pair in (False, True))
    prepare(models)
    prepare({name: how for name, how in pairs.items() if name not in models}, any_family=True)


def needed(taken: Iterable[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """The models and drafts named in lessons' parameters: name -> (device, dtype)."""
    return {v[name]: (v["device"], v["dtype"]) for v in taken for name in ("model", "draft") if name in v}


def absolute(given: dict[str, str]) -> dict[str, str]:
    """The same settings with relative folders of checkpoints made absolute, since kernels run in another folder."""
    folders = {name: Path(given[name]).resolve() for name in ("model", "draft") if name in given}
    return given | {name: str(folder) for name, folder in folders.items() if (folder / "config.json").is_file()}


def prepare(models: dict[str, tuple[str, str]], any_family: bool = False) -> None:
    """Fetch and convert each model once, before the lessons, so that no lesson's time includes a download.

    models: name or folder -> (device, dtype). any_family: for lessons that take a pair of models, and run families
    other than Llama by transformers' own forward pass. Errors of `load` become a UsageError, and so does a model that
    the readable decoder cannot compute; a model with a known name is checked before it is fetched.
    """
    from lessons_lib.models import ModelUnavailable, load
    from lessons_lib.models.hub import HUB, LLAMA_LIKE

    for model, (device, dtype) in models.items():
        if model in HUB and model not in LLAMA_LIKE and not any_family:
            raise not_taken(model)
        try:
            with line(f"model {Path(model).name}"):
                config = load(model, device=device, dtype=dtype).network.config
                any_family or check_taken(model, config)
        except (ValueError, ModelUnavailable) as error:
            raise UsageError(str(error)) from error


def check_taken(model: str, config: Any) -> None:
    """Raise UsageError unless the readable decoder, on which every lesson builds, supports this config."""
    from lessons_lib.models.decoder import decoder_config

    try:
        decoder_config(config)
    except ValueError as error:
        raise not_taken(model) from error


def not_taken(model: str) -> UsageError:
    """The error for an unsupported model; lists the supported ones."""
    from lessons_lib.models.hub import LLAMA_LIKE

    return UsageError(f"The lessons take Llama-like models such as {', '.join(LLAMA_LIKE)}, and {model} is none.")


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
            failure = describe(error, nbformat.read(target, as_version=4))
        except Exception as error:  # a kernel that died or never started
            failure = died(f"{type(error).__name__}: {error}".strip().splitlines()[0], target)
        said[0] = f"FAILED in {failure}" if failure else "ok"
    seconds = time.perf_counter() - start
    if target.exists():
        render.write_page(target, target.with_suffix(".html"))
    return Result(lesson, seconds, failure)


def died(said: str, target: Path) -> str:
    """Prefix an error with the cell that was started last, if papermill wrote the notebook.

    Example: cell [7] (`x = load(model)`): ... The number counts started cells, since a kernel may die before it reports
    its own count.
    """
    cells = nbformat.read(target, as_version=4).cells if target.exists() else []
    begun = [c for c in cells if c.cell_type == "code" and c.metadata.get("papermill", {}).get("start_time")]
    return f"cell [{len(begun)}] (`{opening(begun[-1])}`): {said}" if begun else said


def opening(cell: nbformat.NotebookNode) -> str:
    """The first line of a cell, cut to 60 characters."""
    return next((text for text in cell.source.splitlines() if text.strip()), "")[:60]


def describe(error: papermill.PapermillExecutionError, nb: nbformat.NotebookNode) -> str:
    """Format an error: cell [7] (`x = load(model)`): ValueError: no such model."""
    cells = [c for c in nb.cells if c.cell_type == "code" and c.get("execution_count") == error.exec_count]
    first = opening(cells[0]) if cells else ""
    said = str(error.evalue).strip().splitlines() or [""]
    return f"cell [{error.exec_count}] (`{first}`): {error.ename}: {said[0]}"


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
