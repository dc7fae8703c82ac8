"""The command `lessons`: run, open, test and sweep the lessons, probe this machine, measure the claims.

It works in a clone of the course. `make help` also lists the commands for developers of the course.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from lessons_lib.paths import ROOT

NEEDED = {  # command: a module it needs, and the extra of pyproject.toml that installs it
    "run": ("papermill", "lessons"),
    "lab": ("jupyterlab", "lessons"),
    "probe": ("torch", "lessons"),
    "sweep": ("distributed", "sweep"),
    "test": ("nbval", "test"),
    "bench": ("matplotlib", "lessons"),
}
AT_ONCE = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile")  # the tests of a file share fixtures
LESSONS = "a lesson's number or name, such as 02 or kv_cache; all of them without any"


def main(arguments: list[str] | None = None) -> int:
    """Run a command line (default: sys.argv); returns the exit status."""
    options = parser().parse_args(arguments)
    if problem := unmet(options.command):
        print(problem, file=sys.stderr)
        return 2
    from lessons_lib.course.lessons import UsageError

    try:
        return COMMANDS[options.command](options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


def unmet(command: str, root: Path = ROOT) -> str:
    """Why a command cannot run here, and what to do about it; "" if it can."""
    module, extra = NEEDED[command]
    if not (root / "pyproject.toml").is_file():
        how = 'clone its repository and type `pip install -e ".[lessons]"` there.'
        return f"`lessons {command}` needs the files of the course: {how}"
    if find_spec(module) is None:
        return f'`lessons {command}` needs {module}: type `pip install -e ".[{extra}]"` in {root}.'
    return ""


def parser() -> argparse.ArgumentParser:
    """Command-line parser of all commands."""
    top = argparse.ArgumentParser(
        prog="lessons",
        usage="lessons COMMAND ... (`make help` has those for working on the course: lint, site, ...)",
        description="The commands of the course, for a clone of it.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    what = "execute the lessons into build/: pages, index and scorecard"
    run = commands.add_parser("run", help=what, prog="lessons run")
    run.description = "Execute lessons into build/, a line each. A lesson that fails does not stop the others."
    run.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    add_parameters(run)

    commands.add_parser("lab", help="open JupyterLab on notebooks/", prog="lessons lab")

    what = "measure this machine, and say how fast it can at best decode a model"
    probe = commands.add_parser("probe", help=what, prog="lessons probe")
    probe.add_argument("--model", default="smollm2-135m", help="a registered model's name, or a checkpoint's folder")
    probe.add_argument("--device", default="auto", help="cpu, cuda, mps or auto")

    what = "execute lessons over a grid of parameters: one table, and plots"
    sweep = commands.add_parser("sweep", help=what, prog="lessons sweep")
    sweep.description = (
        "Execute lessons at every point of a grid into build/sweep/. A finished point is not executed again unless its "
        "lesson, its parameters or the package change."
    )
    some = "a lesson's number or name; without any, those with a parameter of the grid"
    sweep.add_argument("lessons", nargs="*", metavar="LESSON", help=some)
    values = "values to combine, such as gamma=2,4,8 dtype=fp32,bf16; default: gamma=2,4,8"
    sweep.add_argument("--grid", nargs="+", default=["gamma=2,4,8"], metavar="NAME=VALUES", help=values)
    add_parameters(sweep)
    workers = "processes on this machine; more than 1 disturb each other's times, and are for what counts"
    sweep.add_argument("--workers", type=int, default=1, metavar="N", help=workers)
    sweep.add_argument("--scheduler-address", default="", metavar="ADDRESS", help="a Dask scheduler's workers instead")

    test = commands.add_parser("test", help="unit and peer tests, then the lessons with nbval", prog="lessons test")
    test.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    test.add_argument("--quick", action="store_true", help="without the lessons")

    bench = commands.add_parser("bench", help="measure the claims into bench/results/", prog="lessons bench")
    bench.add_argument("claims", nargs="*", metavar="CLAIM", help="a claim's name, or how it begins; default: all")
    bench.add_argument("--questions", metavar="FILE", help="ask these, in Spec-Bench's format; into build/bench/")
    bench.add_argument("--quick", action="store_true", help="fewer repeats; never overwrites a full result")
    return top


def add_parameters(command: argparse.ArgumentParser) -> None:
    """Add the options of `run` and `sweep` that set lessons' parameters."""
    command.add_argument("--model", help="a registered model's name, or a folder with a checkpoint")
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

    chosen = [] if options.quick else select(find(), options.lessons)
    statuses = [python("-m", "pytest", "-q", *AT_ONCE)]
    if chosen:
        statuses.append(python("-m", "pytest", "-q", "--nbval-lax", *(lesson.path for lesson in chosen)))
    return int(any(statuses))  # a process ended by a signal has a negative status


def probe(options: argparse.Namespace) -> int:
    """Measure this machine anew, and print how fast it can decode a model at best."""
    from lessons_lib.course.lessons import UsageError
    from lessons_lib.measure import cost, machine
    from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES
    from lessons_lib.models import ModelUnavailable, load
    from lessons_lib.models.hub import pick_device

    try:
        device = pick_device(options.device)
        shape = CONFIGS.get(options.model) or load(options.model, device).shape
    except (ValueError, ModelUnavailable) as error:
        raise UsageError(str(error)) from error
    print(machine.environment(device))
    if machine.busy_warning():  # lessons would use these rates for predictions
        print("These rates are not kept for the lessons.")
        rates = machine.measure(device, machine.default_dtypes(device))
    else:
        rates = machine.probe(device, refresh=True)
    print(f"\n{rates}\n")
    for dtype in rates.matvec_bandwidth:
        read = cost.bytes_decode(shape, weight_bytes=ELEMENT_BYTES[dtype])
        fastest = 1 / cost.limit(cost.flops_decode(shape), read, rates, dtype)
        print(f"{shape.name} in {dtype}: at most {fastest:.3g} tokens/s, as each reads {read / 1e6:,.0f} MB of weights")
    return 0


def bench(options: argparse.Namespace) -> int:
    """Measure the claims, then list those that miss their bar. With other questions no claim is judged."""
    from lessons_lib.measure.results import claim_cells, load, short_of_bar, write_benchmarks

    call = ["-m", "bench.run", *options.claims, *(["--quick"] if options.quick else [])]
    if options.questions:
        return python(*call, "--questions", Path(options.questions).resolve())
    status, pages = python(*call), ROOT / "build" / "bench"
    results = ROOT / "bench" / "results"
    if options.quick:
        results = pages = pages / "quick"
    print(f"as a page, and as Markdown beside it: {write_benchmarks(results, pages / 'bench.html')}")
    for name, value, _, bar, *_ in claim_cells(short_of_bar(load(results / "claims.json"))):
        print(f"bar not reached: {name} is {value}, bar {bar}")
    return status


def python(*arguments: str | Path) -> int:
    """Run this environment's Python in the clone."""
    return subprocess.call([sys.executable, *map(str, arguments)], cwd=ROOT)


COMMANDS = {"run": run, "lab": lab, "probe": probe, "sweep": sweep, "test": test, "bench": bench}
