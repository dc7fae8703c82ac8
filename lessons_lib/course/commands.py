"""What each command needs and does. Each returns an exit status.

options: as lessons_lib.__main__.parser parses them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from lessons_lib.paths import ROOT

if TYPE_CHECKING:
    from lessons_lib.course.lessons import Lesson  # `clean` works before anything is installed

EXTRAS = {  # of pyproject.toml, that a command needs instead of `lessons`
    "sweep": "sweep",
    "site": "site",
    "test": "test",
    "test-quick": "test",
    "test-deep": "test",
    "lint": "test",
    "test-browser": "browser",
    "mutation": "mutation",
}
LEFTOVERS = ("build", ".pytest_cache", ".ruff_cache", ".hypothesis", "lessons_lib.egg-info")
AT_ONCE = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile")  # a file's tests share what they made


def dispatch(options: argparse.Namespace) -> int:
    """Carry out the parsed command; what it lacks or refuses (UsageError) is printed, status 2.

    ValueError where README or CONTRIBUTING lacks a table that is written or shown, or bench/results/claims.json is
    damaged.
    """
    if problem := unmet(options.command):
        print(problem, file=sys.stderr)
        return 2
    if options.command == "clean":
        return clean()
    from lessons_lib.course.lessons import UsageError

    try:
        return COMMANDS[options.command](options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


def unmet(command: str, root: Path = ROOT) -> str:
    """Why a command cannot run here, as a sentence that says what to do; "" if it can."""
    if not (root / "pyproject.toml").is_file():
        how = 'clone its repository and type `pip install -e ".[lessons]"` there.'
        return f"`lessons {command}` needs the files of the course: {how}"
    if command == "clean":
        return ""
    extra = EXTRAS.get(command, "lessons")
    missing = [name for name in packages(extra, root) if not is_installed(name)]
    how = f'install them with `pip install -e ".[{extra}]"` in {root}.'
    return f"`lessons {command}` needs packages that are not here ({', '.join(missing)}): {how}" if missing else ""


def packages(extra: str, root: Path) -> Iterator[str]:
    """The names of the packages that an extra of pyproject.toml brings, with those of the extras that it includes."""
    import tomllib

    for text in tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"][extra]:
        if included := re.match(r"lessons_lib\[(.+)]", text):
            for inner in included[1].split(","):
                yield from packages(inner, root)
        else:
            yield re.match(r"[\w.-]+", text)[0]


def is_installed(package: str) -> bool:
    """Whether this environment has a package."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def run(options: argparse.Namespace) -> int:
    """Execute lessons into build/, with the named settings and the others as one. UsageError as `runner.run`."""
    from lessons_lib.course import runner

    return runner.run(options.lessons, given(options))


def given(options: argparse.Namespace) -> dict[str, str]:
    """The parameters of a command line: the named settings and the others as one. UsageError as `lessons.settings`."""
    from lessons_lib.course.lessons import settings

    named = {"model": options.model, "device": options.device, "dtype": options.dtype}
    return settings(options.params) | {name: value for name, value in named.items() if value}


def sweep(options: argparse.Namespace) -> int:
    """Execute lessons over a grid of parameters into build/sweep/. UsageError as `sweep.sweep`."""
    from lessons_lib.course import sweep
    from lessons_lib.course.lessons import settings

    grid, address = settings(options.grid), options.scheduler_address
    return sweep.sweep(options.lessons, grid, given(options), options.workers, address)


def lessons(options: argparse.Namespace) -> int:
    """Execute lessons and store their outputs in notebooks/. UsageError for one that does not exist."""
    from lessons_lib.course import store

    return store.store(options.lessons)


def test_quick(options: argparse.Namespace) -> int:
    """Lint, then every test that executes no lesson."""
    return worst(lint(options), python("-m", "pytest", "-q", *AT_ONCE))


def test(options: argparse.Namespace) -> int:
    """The quick tests, then the lessons, even if a test failed, so that one call shows all.

    UsageError for a lesson that does not exist.
    """
    from lessons_lib.course.lessons import find, select

    chosen = select(find(), options.lessons)
    return worst(test_quick(options), nbval(chosen))


def test_deep(options: argparse.Namespace) -> int:
    """The property tests with a larger budget, from another seed every time."""
    os.environ["HYPOTHESIS_PROFILE"] = "deep"
    return python("-m", "pytest", "-q", *AT_ONCE, "-m", "hypothesis", "tests/unit")


def mutation(options: argparse.Namespace) -> int:
    """How many of a sample of broken libraries the tests notice."""
    from lessons_lib.course import mutation

    return mutation.mutate()


def test_browser(options: argparse.Namespace) -> int:
    """Lessons in JupyterLab in a real browser. UsageError for a lesson that does not exist."""
    from lessons_lib.course.lessons import find, select

    select(find(), options.lessons)
    asked = ["--lessons", *options.lessons] if options.lessons else []
    return python("-m", "pytest", "-v", "tests/browser", *(["--full"] if options.full else []), *asked)


def worst(*statuses: int) -> int:
    """1 if any failed. A process that a signal ended has a negative status, which a maximum would lose."""
    return int(any(statuses))


def nbval(chosen: list[Lesson]) -> int:
    """Execute lessons and compare the outputs of the cells tagged nbval-check-output."""
    if not chosen:
        return 0
    return python("-m", "pytest", "-q", "--nbval-lax", *(lesson.path for lesson in chosen))


def lint(options: argparse.Namespace) -> int:
    """The tools that read code, then the house rules for lessons."""
    from lessons_lib.course import checks, tools

    found = [*tools.lint(), *checks.lint()]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return worst(len(found))


def lab(options: argparse.Namespace) -> int:
    """JupyterLab; as root, which it refuses without being told: in containers and rented machines there is no other."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return python("-m", "jupyterlab", *(["--allow-root"] if root else []), ROOT / "notebooks")


def probe(options: argparse.Namespace) -> int:
    """Measure this machine anew, and say how fast it can at best decode a model. UsageError for a model it lacks."""
    from lessons_lib.course.lessons import UsageError
    from lessons_lib.measure import hardware, machine, roofline
    from lessons_lib.measure.shape import ELEMENT_BYTES, SHAPES
    from lessons_lib.models import ModelUnavailable, load
    from lessons_lib.models.hub import pick_device

    try:
        device = pick_device(options.device)
        shape = SHAPES.get(options.model) or load(options.model, device).shape
    except (ValueError, ModelUnavailable) as error:
        raise UsageError(str(error)) from error
    print(machine.environment(device))
    if machine.busy_warning():  # the lessons would predict from these rates
        print("These rates are not kept for the lessons.")
        rates = hardware.measure(device, hardware.default_dtypes(device))
    else:
        rates = hardware.probe(device, refresh=True)
    print(f"\n{rates}\n")
    for dtype in rates.matvec_bandwidth:
        read = roofline.bytes_decode(shape, weight_bytes=ELEMENT_BYTES[dtype])
        fastest = 1 / roofline.limit(roofline.flops_decode(shape), read, rates, dtype)
        print(f"{shape.name} in {dtype}: at most {fastest:.3g} tokens/s, as each reads {read / 1e6:,.0f} MB of weights")
    return 0


def bench(options: argparse.Namespace) -> int:
    """Measure, write README's tables, and end with the claims that miss their bar or have no value.

    With another file's questions only measure: the claims are about our own. A quick run's rows stand apart and leave
    README as it is. ValueError as `readme.fill`.
    """
    from lessons_lib.course import readme
    from lessons_lib.measure import claims, evidence

    call = ["-m", "bench.run", *options.claims, *(["--quick"] if options.quick else [])]
    if options.questions:
        return python(*call, "--questions", Path(options.questions).resolve())
    status, results, pages = python(*call), readme.CLAIMS.parent, ROOT / "build" / "bench"
    if options.quick:
        results = pages = pages / "quick"
    else:
        readme.fill()
    print(f"as a page, and as Markdown beside it: {evidence.write(results, pages / 'bench.html')}")
    for name, value, _, bar, *_ in claims.cells(claims.short_of_bar(claims.load(results / "claims.json"))):
        print(f"bar not reached: {name} is {value}, bar {bar}")
    return status


def site(options: argparse.Namespace) -> int:
    """The rendered course from what notebooks, docstrings and lists say now, links checked; ValueError as `build`."""
    from lessons_lib.course.site import build

    return build.build()


def figures(options: argparse.Namespace) -> int:
    """Draw imgs/."""
    from lessons_lib.figures.drawings import draw_all

    for path in draw_all(ROOT / "imgs"):
        print(path.relative_to(ROOT))
    return 0


def clean(root: Path = ROOT) -> int:
    """Remove what the commands leave in the checkout, but neither .venv nor models."""
    for folder in [root / name for name in LEFTOVERS]:
        shutil.rmtree(folder, ignore_errors=True)
    for part in ("lessons_lib", "tests", "bench", "notebooks"):
        for name in ("__pycache__", ".ipynb_checkpoints"):
            for folder in list((root / part).rglob(name)):
                shutil.rmtree(folder, ignore_errors=True)
    return 0


def python(*arguments: str | Path) -> int:
    """Run this environment's Python in the checkout."""
    return subprocess.call([sys.executable, *map(str, arguments)], cwd=ROOT)


COMMANDS = {
    "run": run,
    "sweep": sweep,
    "lessons": lessons,
    "test": test,
    "test-quick": test_quick,
    "test-deep": test_deep,
    "mutation": mutation,
    "test-browser": test_browser,
    "lint": lint,
    "lab": lab,
    "probe": probe,
    "bench": bench,
    "site": site,
    "figures": figures,
}
