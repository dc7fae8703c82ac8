"""`sweep`: a grid of parameters over lessons, executed by Dask's workers, resumable, with one table and plots.

A worker gets a lesson's text and gives back the executed one, so that workers elsewhere need the package but no shared
folder. Each point's files lie in build/sweep/points/NAME-KEY as soon as it is finished, and are not made again.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from lessons_lib.course import results
from lessons_lib.course.grid import Point, package, points
from lessons_lib.course.lessons import Lesson, UsageError, find
from lessons_lib.course.runner import execute, prepare_all
from lessons_lib.paths import ROOT
from lessons_lib.progress import bar

BUILD = ROOT / "build" / "sweep"
ANSWERS = 10  # seconds that a scheduler elsewhere may take to answer
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # Dask sets each to 1 unless told
Files = dict[str, bytes]


def sweep(
    asked: list[str],
    grid: dict[str, str],
    fixed: dict[str, str],
    workers: int = 1,
    address: str = "",
    build: Path = BUILD,
    lessons: list[Lesson] | None = None,
) -> int:
    """Execute what is not done yet of the grid, gather the results of all of it; returns the exit status.

    workers: processes on this machine, or address: of a Dask scheduler whose workers are used instead. Every name is
    checked before anything runs. UsageError as in `runner.run`, and where workers hold another package than this one.
    """
    wanted = points(find() if lessons is None else lessons, asked, grid, fixed)
    prepare_all([point.taken for point in wanted])
    todo = [point for point in wanted if not results.finished(build, point)]
    print(f"{len(wanted)} points, {len(wanted) - len(todo)} of them finished before")
    if todo:
        with client(workers, address) as engine:
            same_package(engine.run(package))
            run(engine, todo, build)
    return results.gather(wanted, list(grid), build)


def run(engine: Any, todo: list[Point], build: Path) -> None:
    """Execute the points on the workers and keep each as it ends; a worker that dies costs its point, not the sweep."""
    from dask.distributed import as_completed

    futures = {engine.submit(work, *travelling(point), retries=1, pure=False): point for point in todo}
    with bar(total=len(todo), desc="sweep", unit="point") as progress:
        for future in as_completed(futures):
            point, error = futures[future], future.exception()
            files = lost(error) if error else future.result()
            failure = results.keep(build, point, files)
            progress.write(f"{point.name:<60} {f'FAILED in {failure}' if failure else 'ok'}")
            progress.update()


def travelling(point: Point) -> tuple[str, str, dict[str, Any]]:
    """What a worker needs of a point: its lesson's name and text, and the values."""
    return point.lesson.name, nbformat.writes(point.lesson.read()), point.values


def lost(error: BaseException) -> Files:
    """What is left of a point whose worker gave nothing back."""
    said = {"failure": f"{type(error).__name__}: {error}", "seconds": None, "machine": ""}
    return {results.RAN: json.dumps(said).encode()}


def work(name: str, text: str, values: dict[str, Any]) -> Files:
    """In a worker: execute a lesson in a folder of its own, once more if it fails; the files that this leaves.

    A failure is among them and not raised, since Dask cuts long errors, and with them what a lesson had done so far.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        lesson, build = Lesson(Path(folder) / "notebooks" / f"{name}.ipynb"), Path(folder) / "build"
        for place in (lesson.path.parent, build):
            place.mkdir()
        lesson.path.write_text(text, encoding="utf-8")
        done = execute(lesson, values, build)
        if done.failure:
            done = execute(lesson, values, build)
        files = {path.name: path.read_bytes() for path in build.iterdir()}
    ran = {"failure": done.failure, "seconds": round(done.seconds, 1), "machine": about()}
    return files | {results.RAN: json.dumps(ran).encode()}


def about() -> str:
    """The machine that this runs on, and the versions that matter, but not its load, which changes."""
    from lessons_lib.measure import machine

    known = machine.host() | machine.versions()
    return ", ".join(f"{name} {value}" for name, value in known.items() if name != "load")


@contextlib.contextmanager
def client(workers: int, address: str) -> Iterator[Any]:
    """A Dask client: of the scheduler at an address, or of this many worker processes on this machine alone.

    UsageError if no scheduler answers.
    """
    import dask
    from dask.distributed import Client, LocalCluster

    if address:
        try:
            connected = Client(address, timeout=ANSWERS)
        except OSError as error:
            raise UsageError(f"No Dask scheduler answers at {address}.") from error
        with connected:
            yield connected
        return
    settings = {"distributed.nanny.pre-spawn-environ": threads(workers), "distributed.scheduler.allowed-failures": 1}
    here = {
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "memory_limit": 0,
        "silence_logs": logging.CRITICAL,
    }
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=workers, threads_per_worker=1, **here) as cluster,
        Client(cluster) as started,
    ):
        yield started


def threads(workers: int) -> dict[str, int | None]:
    """The threads that a worker's kernels may use: as many as in `run` for one worker, a share of the cores for more.

    None leaves a variable as it is.
    """
    share = None if workers == 1 else max(1, (os.cpu_count() or 1) // workers)
    return dict.fromkeys(THREADS, share)


def same_package(packages: dict[str, str]) -> None:
    """UsageError unless there are workers and each holds this lessons_lib, torch and transformers."""
    if not packages:
        raise UsageError("The scheduler has no workers: start some with `dask worker ADDRESS`.")
    others = sorted(worker for worker, fingerprint in packages.items() if fingerprint != package())
    if others:
        raise UsageError(
            f"Workers with another lessons_lib, torch or transformers: {', '.join(others)}. Install this one."
        )
