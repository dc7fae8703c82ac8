"""`lessons sweep`: execute lessons at every point of a parameter grid; writes a table of scorecard rows, and plots.

`gamma=2,4,8 model=smollm2-135m` makes three points of a lesson that has gamma. Dask workers execute them with
papermill. A worker receives a lesson's text and returns files, so remote workers need the package but no shared
folder. Finished points are stored in build/sweep/points/ and are not executed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import logging
import os
import re
import tempfile
import textwrap
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from lessons_lib.course.lessons import Lesson, UsageError, find, overrides, parameters, select
from lessons_lib.course.runner import absolute, execute, prepare_all, shown
from lessons_lib.paths import ROOT
from lessons_lib.progress import bar

BUILD = ROOT / "build" / "sweep"
COMMA = re.compile(r",(?![^\[(]*[\])])")  # commas outside brackets: prompt_lengths=[16,64],[128,256] are two lists
SCORE = ["claim", "unit", "predicted", "measured", "ratio", "verdict", "limit", "peer"]  # columns of the table
ANSWERS = 10  # seconds to wait for a remote scheduler
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # Dask sets each to 1 by default


class Point(NamedTuple):
    """One lesson with values for its parameters."""

    lesson: Lesson
    given: dict[str, Any]
    taken: dict[str, Any]  # all parameters, given or default
    folder: str  # of the point's files, below build/sweep; named after code, parameters and package

    def record(self, build: Path) -> dict[str, Any]:
        """What is stored of the point; until then, a failure."""
        path = build / self.folder / "point.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"failure": "missing"}

    def __str__(self) -> str:
        return " ".join([self.lesson.name, *(f"{name}={value}" for name, value in self.given.items())])


def sweep(
    asked: list[str],
    grid: dict[str, str],
    fixed: dict[str, str],
    workers: int = 1,
    address: str = "",
    build: Path = BUILD,
    lessons: list[Lesson] | None = None,
) -> int:
    """Execute the missing points of the grid, then gather the results of all points; returns the exit status.

    workers: processes on this machine; or address: of a Dask scheduler whose workers are used instead. Raises
    UsageError before anything runs.
    """
    if workers < 1:
        raise UsageError("--workers must be at least 1.")
    wanted = points(find() if lessons is None else lessons, asked, grid, fixed)
    prepare_all([point.taken for point in wanted])
    todo = [point for point in wanted if point.record(build)["failure"]]
    print(f"{len(wanted)} points, {len(wanted) - len(todo)} of them finished before")
    if todo:
        with client(workers, address) as engine:
            run(engine, todo, build)
    return gather(wanted, list(grid), build)


def points(lessons: list[Lesson], asked: list[str], grid: dict[str, str], fixed: dict[str, str]) -> list[Point]:
    """Every selected lesson with every distinct combination of the grid's values for its parameters.

    grid: name -> comma-separated values; fixed: name -> one value. Without a selection: the lessons that have a
    parameter of the grid.
    """
    if twice := sorted(grid.keys() & fixed.keys()):
        raise UsageError(f"Give {', '.join(twice)} in the grid or beside it, not in both.")
    values = [[value.strip() for value in COMMA.split(text)] for text in grid.values()]
    combinations = [dict(zip(grid, chosen, strict=True)) for chosen in itertools.product(*values)]
    defaults = {lesson: parameters(lesson) for lesson in select(lessons, asked)}
    overridden = [overrides(defaults, absolute(fixed | combination)) for combination in combinations]
    found = {}
    for lesson, default in defaults.items():
        code = [cell.source for cell in lesson.read().cells if cell.cell_type == "code"]
        for given in [one[lesson] for one in overridden if asked or grid.keys() & default.keys()]:
            taken = default | given
            content = json.dumps([code, taken, fingerprint()], sort_keys=True)
            folder = f"points/{lesson.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
            found[folder] = Point(lesson, given, taken, folder)
    return list(found.values())


@cache
def fingerprint() -> str:
    """12 hex digits that identify the installed lessons_lib and the libraries it computes with."""
    digest = hashlib.sha256(" ".join(version(name) for name in ("torch", "transformers")).encode())
    for path in sorted((ROOT / "lessons_lib").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def client(workers: int, address: str) -> Any:
    """A Dask client of the scheduler at this address, or of this many worker processes on this machine.

    The kernels of a single worker use as many threads as those of `lessons run`; several workers share the cores.
    """
    import dask
    from dask.distributed import Client

    if address:
        try:
            return Client(address, timeout=ANSWERS)
        except OSError as error:
            raise UsageError(f"No Dask scheduler answers at {address}.") from error
    share = None if workers == 1 else max(1, (os.cpu_count() or 1) // workers)  # None leaves a variable as it is
    threads = {"distributed.nanny.pre-spawn-environ": dict.fromkeys(THREADS, share)}
    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    with dask.config.set({"distributed.scheduler.allowed-failures": 1} | threads):
        return Client(n_workers=workers, threads_per_worker=1, silence_logs=logging.CRITICAL, **here)


def run(engine: Any, todo: list[Point], build: Path) -> None:
    """Execute points on the workers and store each as it ends. A worker that dies costs its point, not the sweep.

    UsageError without workers, and if one of them has another lessons_lib, torch or transformers.
    """
    from dask.distributed import as_completed

    if set(engine.run(fingerprint).values()) != {fingerprint()}:
        raise UsageError("Start workers with this lessons_lib, torch and transformers: `dask worker ADDRESS`.")
    futures = {
        engine.submit(work, point.lesson.name, point.lesson.path.read_bytes(), point.given, pure=False): point
        for point in todo
    }
    progress = bar(as_completed(futures), total=len(todo), desc="sweep", unit="point")
    for future in progress:
        point, error = futures[future], future.exception()
        lost = {"failure": f"{type(error).__name__}: {error}", "seconds": None, "scores": []}
        record, files = (lost, {}) if error else future.result()
        (build / point.folder).mkdir(parents=True, exist_ok=True)
        # point.json is written last: if it exists, all files do
        for name, content in (files | {"point.json": json.dumps(record, default=str).encode()}).items():
            (build / point.folder / name).write_bytes(content)
        progress.write(f"{point!s:<60} {'FAILED in ' + record['failure'] if record['failure'] else 'ok'}")


def work(name: str, notebook: bytes, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """On a worker: execute a lesson in a temporary folder; returns its record and the resulting files by name.

    A failure is returned in the record and not raised, because Dask truncates long errors, and what the lesson had done
    would be lost.
    """
    from lessons_lib.measure import results

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        lesson, build = Lesson(Path(folder) / f"{name}.ipynb"), Path(folder) / "build"
        build.mkdir()
        lesson.path.write_bytes(notebook)
        done = execute(lesson, given, build)
        scores = [score.record() for score in results.collect(build.glob("*.ipynb"))]
        files = {path.name: path.read_bytes() for path in build.iterdir()}
    return {"failure": done.failure, "seconds": round(done.seconds, 1), "scores": scores}, files


def gather(wanted: list[Point], names: list[str], build: Path) -> int:
    """Write results.csv, results.md and a plot for each lesson, and print failures; returns the exit status.

    names: the grid's parameters, which become columns.
    """
    import pandas as pd

    rows, failed = [], []
    for point in wanted:
        record = point.record(build)
        shared = {"lesson": point.lesson.name} | {name: str(point.taken.get(name, "")) for name in names}
        ran = {"seconds": record["seconds"], "failure": record["failure"]}
        rows += [shared | {name: score.get(name) for name in SCORE} | ran for score in record["scores"] or [{}]]
        failed += [f"  {point}: {record['failure']}"] if record["failure"] else []
    table = pd.DataFrame(rows)
    table.to_csv(build / "results.csv", index=False)
    pictures = [name for name, found in table.groupby("lesson") if plot(found, names, build / f"{name}.png")]
    page = ["# Sweep", *(f"![{name}: measured and predicted]({name}.png)" for name in pictures)]
    page.append(table.drop(columns=["limit", "peer"]).to_markdown(index=False, floatfmt=".3g", missingval="-"))
    (build / "results.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    print(f"\nRead {shown(build / 'results.md')}, with the same as results.csv beside it.")
    outcome = f"{len(failed)} of {len(wanted)} points failed:" if failed else f"All {len(wanted)} points went well."
    print("\n".join([outcome, *failed]))
    return int(bool(failed))


def plot(table: Any, names: list[str], path: Path) -> bool:
    """A panel for each claim of one lesson: measured (filled) and predicted (open) at each point of the grid.

    Returns False, and writes no file, if nothing varies or nothing was measured.
    """
    from matplotlib.figure import Figure

    table = table.dropna(subset="measured").astype({"measured": float, "predicted": float})
    changing = [name for name in names if table[name].nunique() > 1]
    if not changing:
        return False
    table["point"] = [" ".join(f"{name}={row[name]}" for name in changing) for row in table.to_dict("records")]
    claims = list(table.groupby("claim", sort=False))
    figure = Figure(figsize=(8, 3 * len(claims)), layout="constrained")
    for ax, (claim, rows) in zip(figure.subplots(len(claims), squeeze=False).flat, claims, strict=True):
        ax.plot("point", "measured", "o", data=rows)
        ax.plot("point", "predicted", "o", data=rows, fillstyle="none")
        ax.tick_params(axis="x", rotation=20)
        ax.set(title=textwrap.fill(claim, 80), ylabel=rows["unit"].iloc[0])
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        ax.legend()
    figure.savefig(path, dpi=150)
    return True
