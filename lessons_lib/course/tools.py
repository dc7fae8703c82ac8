"""The tools of `make lint` that read code: ruff, import-linter for the rooms, vulture for what nothing uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lessons_lib.course.lessons import find
from lessons_lib.paths import ROOT

SCRIPTS = ROOT / "build" / "lint"
TOOLS = {  # every tool without what it says when all is well; what they check stands in pyproject.toml
    "ruff": ["-m", "ruff", "check", "--quiet"],
    "rooms": ["-c", "from importlinter.cli import lint_imports; exit(lint_imports(no_cache=True, no_logo=True))"],
    "unused": ["-m", "vulture", "lessons_lib", "bench", SCRIPTS],  # what only tests use is unused
    "unused in tests": ["-m", "vulture", "lessons_lib", "bench", "tests", SCRIPTS],
}


def lint() -> list[str]:
    """What the tools complain about, a text for each that does."""
    write_scripts(SCRIPTS)
    return [said for arguments in TOOLS.values() if (said := complaint([sys.executable, *map(str, arguments)]))]


def complaint(call: list[str]) -> str:
    """What a program says if it fails; "" if it does not."""
    done = subprocess.run(call, cwd=ROOT, text=True, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.strip() or f"{call} failed" if done.returncode else ""


def write_scripts(folder: Path) -> None:
    """The lessons' code, a script each, for tools that read no notebooks."""
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in find():
        code = [cell.source for cell in lesson.read().cells if cell.cell_type == "code"]
        (folder / f"{lesson.name}.py").write_text("\n".join(code), encoding="utf-8")
