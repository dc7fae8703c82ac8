"""`lessons run`, `lab`, `sweep`, `test` and `bench`: the commands for a clone of the course."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from lessons_lib.cli.common import Refused, add_command
from lessons_lib.paths import ROOT

NEEDED = {  # command: a module it needs, and the extra of pyproject.toml that installs it
    "run": ("papermill", "lessons"),
    "lab": ("jupyterlab", "lessons"),
    "sweep": ("distributed", "sweep"),
    "test": ("nbval", "test"),
    "bench": ("nbformat", "lessons"),
}
AT_ONCE = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile")  # the tests of a file share fixtures
EIGHT_BITS = ("10", "11")  # lessons that mostly time 8-bit matmuls
LESSONS = "a lesson's number or name, such as 02 or kv_cache; all of them without any"


def unmet(command: str) -> str:
    """Why a command cannot run here, and what to do about it; "" if it can."""
    module, extra = NEEDED[command]
    if not (ROOT / "pyproject.toml").is_file():
        how = 'clone its repository and type `pip install -e ".[lessons]"` there.'
        return f"`lessons {command}` needs the files of the course: {how}"
    if find_spec(module) is None:
        return f'`lessons {command}` needs {module}: type `pip install -e ".[{extra}]"` in {ROOT}.'
    return ""


def add(commands) -> None:
    """Add these commands."""
    what = "execute the lessons into build/: pages, index and scorecard"
    about = "Execute lessons into build/, a line each. A lesson that fails does not stop the others."
    examples = "lessons run\nlessons run 02 07 --dtype fp32 --params max_new_tokens=32"
    command = add_command(commands, "run", here(run), what, examples, about)
    command.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    add_parameters(command)

    add_command(commands, "lab", here(lab), "open JupyterLab on notebooks/", "lessons lab")

    about = (
        "Execute lessons at every point of a grid into build/sweep/. A finished point is not executed again\n"
        "unless its lesson, its parameters or the package change."
    )
    what = "execute lessons over a grid of parameters: one table, and plots"
    examples = "lessons sweep 06 --grid gamma=2,4,8\nlessons sweep --grid gamma=2,4 dtype=fp32,bf16 --workers 2"
    command = add_command(commands, "sweep", here(sweep), what, examples, about)
    some = "a lesson's number or name; without any, those with a parameter of the grid"
    command.add_argument("lessons", nargs="*", metavar="LESSON", help=some)
    values = "values to combine, such as gamma=2,4,8 dtype=fp32,bf16; default: gamma=2,4,8"
    command.add_argument("--grid", nargs="+", default=["gamma=2,4,8"], metavar="NAME=VALUES", help=values)
    add_parameters(command)
    workers = "processes on this machine; more than 1 disturb each other's times, and are for what counts"
    command.add_argument("--workers", type=int, default=1, metavar="N", help=workers)
    command.add_argument(
        "--scheduler-address", default="", metavar="ADDRESS", help="a Dask scheduler's workers instead"
    )

    what = "unit and peer tests, then the lessons with nbval"
    command = add_command(commands, "test", here(test), what, "lessons test --quick\nlessons test 02 06")
    command.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    command.add_argument("--quick", action="store_true", help="without the lessons")

    what = "measure the claims into bench/results/"
    command = add_command(commands, "bench", here(bench), what, "lessons bench\nlessons bench lookahead --quick")
    command.add_argument("claims", nargs="*", metavar="CLAIM", help="a claim's name, or how it begins; default: all")
    command.add_argument("--questions", metavar="FILE", help="ask these, in Spec-Bench's format; into build/bench/")
    command.add_argument("--quick", action="store_true", help="fewer repeats; never overwrites a full result")


def here(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, refused if the clone or a package is missing, or if an argument is unknown."""

    def checked(options: argparse.Namespace) -> int:
        if problem := unmet(options.command):
            raise Refused(problem)
        from lessons_lib.course.lessons import UsageError

        try:
            return run(options)
        except UsageError as error:
            raise Refused(str(error)) from error

    return checked


def add_parameters(command: argparse.ArgumentParser) -> None:
    """Add the options of `run` and `sweep` that set lessons' parameters."""
    command.add_argument("--model", help="a Llama-like model: name, folder of a checkpoint, or hub id (owner/model)")
    command.add_argument("--device", help="cpu, cuda, mps or auto")
    command.add_argument("--dtype", help="fp32, bf16, fp16 or auto")
    command.add_argument("--params", nargs="+", default=[], metavar="NAME=VALUE", help="other parameters")


def given(options: argparse.Namespace) -> dict[str, str]:
    """The parameters of a command line, both from options of their own and from the general one."""
    from lessons_lib.course.lessons import settings

    named = {"model": options.model, "device": options.device, "dtype": options.dtype}
    return settings(options.params) | {name: value for name, value in named.items() if value}


def run(options: argparse.Namespace) -> int:
    """Execute lessons into build/."""
    from lessons_lib.course import runner

    return runner.run(options.lessons, given(options))


def lab(options: argparse.Namespace) -> int:
    """Open JupyterLab, as root if necessary: in containers there may be no other user."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return python("-m", "jupyterlab", *(["--allow-root"] if root else []), ROOT / "notebooks")


def sweep(options: argparse.Namespace) -> int:
    """Execute lessons over a grid of parameters into build/sweep/."""
    from lessons_lib.course import sweep
    from lessons_lib.course.lessons import settings

    grid, address = settings(options.grid), options.scheduler_address
    return sweep.sweep(options.lessons, grid, given(options), options.workers, address)


def test(options: argparse.Namespace) -> int:
    """Run the tests, then the lessons, even if a test failed, so that one call shows all failures."""
    from lessons_lib.course.lessons import find, select

    if options.quick and options.lessons:
        raise Refused("--quick leaves the lessons out; name lessons or give --quick, not both.")
    chosen = [] if options.quick else select(find(), options.lessons)
    if not options.lessons:
        chosen = within_reach(chosen)
    statuses = [python("-m", "pytest", "-q", *AT_ONCE)]
    if chosen:
        statuses.append(python("-m", "pytest", "-q", *AT_ONCE, "--nbval-lax", *(lesson.path for lesson in chosen)))
    return int(any(statuses))  # a process ended by a signal has a negative status


def within_reach(lessons: list) -> list:
    """The lessons without EIGHT_BITS where the CPU has no 8-bit instructions; prints which were left out."""
    from lessons_lib.quantization import cpu

    left_out = [lesson.number for lesson in lessons if lesson.number in EIGHT_BITS and not cpu.integer_units()]
    if left_out:
        which = " ".join(left_out)
        print(
            f"Left out on this CPU, which has no 8-bit instructions (VNNI): lessons {which}. They take half an hour "
            f"here; `lessons test {which}` runs them."
        )
    return [lesson for lesson in lessons if lesson.number not in left_out]


def bench(options: argparse.Namespace) -> int:
    """Measure the claims, then list those that miss their bar. With other questions no claim is judged."""
    from lessons_lib.measure.results import claim_cells, load, short_of_bar

    call = ["-m", "bench.run", *options.claims, *(["--quick"] if options.quick else [])]
    if options.questions:
        return python(*call, "--questions", Path(options.questions).resolve())
    if status := python(*call):
        return status  # the stored claims are not this run's
    results = ROOT / "build" / "bench" / "quick" if options.quick else ROOT / "bench" / "results"
    for name, value, _, bar, *_ in claim_cells(short_of_bar(load(results / "claims.json"))):
        print(f"bar not reached: {name} is {value}, bar {bar}")
    return 0


def python(*arguments: str | Path) -> int:
    """Run this environment's Python in the clone. Ctrl-C reaches it, too; then this waits until it has ended."""
    with subprocess.Popen([sys.executable, *map(str, arguments)], cwd=ROOT) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # JupyterLab asks a question now, and pytest ends its kernels
            while process.poll() is None:
                with suppress(KeyboardInterrupt):
                    process.wait()
            raise
