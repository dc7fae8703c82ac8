"""`mutation`: the library broken in hundreds of small ways, one at a time, by mutmut: how many does a test notice?

mutmut makes every change it knows of, remembers which tests call the changed function, and runs those. All of them
would take days: a seeded sample is tried. Everything happens in a copy in build/mutation/, where mutmut keeps what it
found, so that a call that was ended goes on; changes that nobody noticed are tried again, for tests may have come.
Files that are gone stay in the copy until `clean`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lessons_lib.paths import ROOT

COPY = ROOT / "build" / "mutation"
COUNT, SEED = 400, 0  # of the sample
CAUGHT = {1, 3, 24, -24, 36, 152, 255, -9, -11}  # a test failed, ran out of time (mutmut's codes), or Python crashed
EXPLAINED = ROOT / "tests" / "mutants.toml"


def mutate(count: int = COUNT, seed: int = SEED) -> int:
    """Try a sample of the changes, print a table and those that nobody noticed -> 1 if one of these is unexplained.

    2 where the tests fail before anything is broken.
    """
    refresh(ROOT, COPY)
    said = mutmut("run", "none of these", quiet=True)  # makes the changes, and learns which tests call what
    if not (COPY / "mutants" / "mutmut-stats.json").is_file():
        print(f"The tests fail before anything is broken (or run otherwise there):\n{said[-2000:]}", file=sys.stderr)
        return 2
    sample = drawn(results(), count, seed)
    if waiting := [name for name in sample if results()[name] not in CAUGHT]:
        mutmut("run", *waiting)  # a worker a core
    return report(sample, results())


def drawn(names: Iterable[str], count: int, seed: int) -> list[str]:
    """`count` of the names, sorted, those with the lowest hash: where code changes, the others stay drawn."""
    by_chance = lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()  # noqa: E731
    return sorted(sorted(names, key=by_chance)[:count])


def refresh(source: Path, copy: Path) -> None:
    """Bring the copy up to date with the files git knows; what did not change keeps its time, and so its mutants.

    CalledProcessError where source is no git checkout.
    """
    call = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        here, there = source / name, copy / name
        if here.is_file() and not (there.is_file() and there.read_bytes() == here.read_bytes()):
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here, there)


def mutmut(*arguments: str, quiet: bool = False) -> str:
    """Run mutmut in the copy -> what it printed, if quiet."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"}  # as many processes as workers, a core each
    out = {"capture_output": True, "text": True} if quiet else {}
    return subprocess.run([sys.executable, "-m", "mutmut", *arguments], cwd=COPY, env=environ, **out).stdout or ""


def results() -> dict[str, int | None]:
    """Every change's name, and the exit status of the tests with it; None if it was not tried."""
    metas = (json.loads(meta.read_text(encoding="utf-8")) for meta in (COPY / "mutants").rglob("*.meta"))
    return {name: code for meta in metas for name, code in meta["exit_code_by_key"].items()}


def report(sample: list[str], codes: dict[str, int | None]) -> int:
    """Print how many were caught, a line each room, then the others -> 1 if one of them is unexplained."""
    reasons = explained(EXPLAINED)
    others = {name: changed_lines(name) for name in sample if codes[name] not in CAUGHT}
    unexplained = [name for name, change in others.items() if (function_of(name), change) not in reasons]
    for room, tried in sorted(Counter(map(room_of, sample)).items()):
        missed = sum(room_of(name) == room for name in others)
        print(f"{room:<30} {tried - missed:4} of {tried:4} caught")
    caught = len(sample) - len(others)
    print(f"{'all':<30} {caught:4} of {len(sample):4} caught, {caught / len(sample):.1%}; {len(others)} not,")
    print(f"of which {len(others) - len(unexplained)} change nothing, for a reason in {EXPLAINED.relative_to(ROOT)}")
    for name in unexplained:
        print(f"\n{name} ({'not tried' if codes[name] is None else 'unnoticed'})\n{others[name]}")
    return int(bool(unexplained))


def changed_lines(name: str) -> str:
    """The lines that a change takes away and puts there, with - and +, without their indentation."""
    shown = mutmut("show", name, quiet=True).splitlines()
    lines = (line for line in shown if line[:1] in "+-" and not line.startswith(("+++", "---")))
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


def explained(file: Path) -> set[tuple[str, str]]:
    """(function, changed lines) of the changes that a file gives a reason for; KeyError for an entry without either."""
    entries: Iterable[dict] = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", [])
    return {(entry["function"], entry["change"].strip()) for entry in entries}


def function_of(name: str) -> str:
    """`lessons_lib.caches.cache.x_causal__mutmut_3` -> `lessons_lib.caches.cache.x_causal`."""
    return name.rpartition("__mutmut_")[0]


def room_of(name: str) -> str:
    """`lessons_lib.caches.cache.x_causal__mutmut_3` -> `caches`."""
    return name.split(".")[1]
