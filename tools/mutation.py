"""Mutation testing with mutmut: break the library in many small ways, one at a time; how many do the tests detect?

(`make mutation`.) mutmut knows tens of thousands of mutations and remembers which tests call the changed function. All
of them would take days, so a seeded sample is tried. Everything happens in a copy in build/mutation/, which keeps the
results: an interrupted run continues where it stopped, and undetected mutations are tried again, since there may be new
tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

from lessons_lib.paths import ROOT

COPY = ROOT / "build" / "mutation"
COUNT, SEED = 400, 0  # size and seed of the sample
ENOUGH = 0.9  # share of the sample that must be detected
CAUGHT = {1, 3, 24, -24, 36, 152, 255, -9, -11}  # a test failed, ran out of time (mutmut's codes), or Python crashed


def main() -> int:
    """Try the sample, print a table and the undetected mutations.

    Returns 1 if too many are undetected, 2 if the tests fail beforehand.
    """
    refresh(ROOT, COPY)
    said = mutmut("run", "none of these", quiet=True)  # creates mutations, maps tests to functions
    if "failed to collect stats" in said or not (COPY / "mutants" / "mutmut-stats.json").is_file():
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
        shown = "\n".join(failed[-20:]) or said[-2000:]
        print(f"The tests fail before anything is broken (or run otherwise there):\n{shown}", file=sys.stderr)
        return 2
    codes = results()
    by_chance = sorted(codes, key=lambda name: hashlib.sha256(f"{SEED} {name}".encode()).digest())
    sample = sorted(by_chance[:COUNT])  # if code changes, the other names stay in the sample
    if waiting := [name for name in sample if codes[name] not in CAUGHT]:
        mutmut("run", *waiting)  # one worker per core
        codes = results()
        if all(codes[name] is None for name in waiting):
            print("mutmut has tried none of the mutations; its message above says why.", file=sys.stderr)
            return 2
    missed = [name for name in sample if codes[name] not in CAUGHT]
    for name in missed:
        print(f"\n{name} ({'not tried' if codes[name] is None else 'unnoticed'})\n{mutmut('show', name, quiet=True)}")
    package = lambda name: name.split(".")[1]  # noqa: E731
    unnoticed = Counter(map(package, missed))
    for name, tried in sorted(Counter(map(package, sample)).items()):
        print(f"{name:<30} {tried - unnoticed[name]:4} of {tried:4} noticed")
    share = 1 - len(missed) / len(sample)
    print(f"{'all':<30} {len(sample) - len(missed):4} of {len(sample):4} noticed, {share:.1%}")
    return int(share < ENOUGH)


def refresh(source: Path, copy: Path) -> None:
    """Update the copy with the files known to git, and remove code that is gone.

    Unchanged files keep their time, and so their results.
    """
    call = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        here, there = source / name, copy / name
        if here.is_file() and not (there.is_file() and there.read_bytes() == here.read_bytes()):
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here, there)
    # mutmut runs the tests in mutants/, a copy of the copy, and removes nothing there
    for root, folder in product((copy, copy / "mutants"), ("lessons_lib", "bench", "tests", "tools")):
        for path in list((root / folder).rglob("*.py")):
            if not (source / path.relative_to(root)).exists():
                path.unlink()


def mutmut(*arguments: str, quiet: bool = False) -> str:
    """Run mutmut in the copy; returns its output if quiet."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"}  # as many processes as workers, one core each
    out = {"capture_output": True, "text": True} if quiet else {}
    return subprocess.run([sys.executable, "-m", "mutmut", *arguments], cwd=COPY, env=environ, **out).stdout or ""


def results() -> dict[str, int | None]:
    """Name of every mutation, and the tests' exit status with it; None if it was not tried."""
    metas = (json.loads(meta.read_text(encoding="utf-8")) for meta in (COPY / "mutants").rglob("*.meta"))
    return {name: code for meta in metas for name, code in meta["exit_code_by_key"].items()}


if __name__ == "__main__":
    sys.exit(main())
