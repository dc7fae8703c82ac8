"""The course's commands: `lessons COMMAND`, or `python -m lessons_lib COMMAND`, which is what the Makefile calls."""

from __future__ import annotations

import argparse
import os
import sys

from lessons_lib.course.commands import dispatch

LESSONS = "a lesson's number or name, such as 02 or kv_cache; all of them without any"


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line (sys.argv without arguments) and carry it out; returns the exit status."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the lessons' first cell (course/colab.py)
    return dispatch(parser().parse_args(arguments))


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(prog="lessons", description="The commands of the course, for a clone of it.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_run(commands.add_parser("run", help="execute the lessons into build/: pages, index and scorecard"))
    add_sweep(commands.add_parser("sweep", help="execute lessons over a grid of parameters: one table, and plots"))
    what = "lint, unit and peer tests, then the lessons with nbval"
    test = commands.add_parser("test", help=what, description=what)
    test.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    commands.add_parser("test-quick", help="lint, unit and peer tests, without executing the lessons")
    browser = commands.add_parser(
        "test-browser", help="lessons in JupyterLab in a real Chromium: all cells, all sliders"
    )
    browser.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    browser.add_argument("--full", action="store_true", help="the lessons' own parameters instead of short ones")
    commands.add_parser("lab", help="open JupyterLab on notebooks/")
    probe = commands.add_parser("probe", help="measure this machine, and say how fast it can at best decode a model")
    probe.add_argument("--model", default="smollm2-135m", help="a registered model's name, or a checkpoint's folder")
    probe.add_argument("--device", default="auto", help="cpu, cuda, mps or auto")
    store = commands.add_parser("lessons", help="execute the lessons and store their outputs in notebooks/")
    store.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    bench = commands.add_parser("bench", help="measure the claims; writes bench/results/ and README's tables")
    bench.add_argument("claims", nargs="*", metavar="CLAIM", help="a claim's name, or how it begins; default: all")
    bench.add_argument("--questions", metavar="FILE", help="ask these, in Spec-Bench's format; into build/bench/")
    bench.add_argument("--quick", action="store_true", help="fewer repeats; never overwrites a full result")
    commands.add_parser("site", help="all lessons, library reference, glossary and scorecard as pages in build/site/")
    commands.add_parser("figures", help="draw imgs/")
    commands.add_parser("mutation", help="break the library in many small ways; count what the tests notice")
    deep = "the tests with random cases, with two hundred times as many: about an hour"
    commands.add_parser("test-deep", help=deep, description=deep)
    commands.add_parser("lint", help="ruff, which package imports which, dead code, and the checks of notebooks")
    commands.add_parser("clean", help="remove build/ and the tools' caches; keeps .venv and models")
    return top


def add_run(run: argparse.ArgumentParser) -> None:
    """Options of `run`: which lessons, and what is put into their parameters."""
    run.description = "Execute lessons into build/, a line each; a failing lesson does not stop the others."
    run.add_argument("lessons", nargs="*", metavar="LESSON", help=LESSONS)
    add_parameters(run)


def add_parameters(command: argparse.ArgumentParser) -> None:
    """What is put into the lessons' parameters."""
    command.add_argument("--model", help="a registered model's name, or a folder with a checkpoint")
    command.add_argument("--device", help="cpu, cuda, mps or auto")
    command.add_argument("--dtype", help="fp32, bf16, fp16 or auto")
    command.add_argument("--params", nargs="+", default=[], metavar="NAME=VALUE", help="other parameters")


def add_sweep(sweep: argparse.ArgumentParser) -> None:
    """Options of `sweep`: those of `run`, the grid, and who does the work."""
    sweep.description = (
        "Execute lessons at every point of a grid into build/sweep/. A point that failed is tried once more; one that "
        "is finished is not executed again unless its lesson, its parameters or the package change."
    )
    some = "a lesson's number or name; without any, those with a parameter of the grid"
    sweep.add_argument("lessons", nargs="*", metavar="LESSON", help=some)
    values = "values to combine, such as gamma=2,4,8 dtype=fp32,bf16; default: gamma=2,4,8"
    sweep.add_argument("--grid", nargs="+", default=["gamma=2,4,8"], metavar="NAME=VALUES", help=values)
    add_parameters(sweep)
    workers = "processes on this machine; more than 1 disturb each other's times, and are for what counts"
    sweep.add_argument("--workers", type=int, default=1, metavar="N", help=workers)
    sweep.add_argument("--scheduler-address", default="", metavar="ADDRESS", help="a Dask scheduler's workers instead")


if __name__ == "__main__":
    sys.exit(main())
