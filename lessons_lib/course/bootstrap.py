"""From a bare Python to an environment with the pins: the first stage of every command, and so of every lesson.

Standard library alone, and no syntax newer than Python 3.8, so that an old interpreter gets a sentence
instead of a SyntaxError.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "lessons,test,bench,sweep,site"
STAMP = "lessons_lib.json"


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def ensure(root: Path = ROOT, environ=os.environ) -> tuple[Path, bool]:
    """The Python of an environment that holds the pins, and whether anything was installed just now.

    The active environment is used; without one, `.venv` in the checkout is made. A stamp in the environment
    says what was installed into it, so that a second call does nothing. SetupError outside a checkout, for a Python
    that is too old, and with what pip said where it fails.
    """
    if not (root / "pyproject.toml").is_file():
        raise SetupError("This command works on a checkout: run it in a clone of the repository.")
    folder = active_environment(environ) or root / ".venv"
    if is_current(folder, root, environ):
        return python_of(folder), False
    if not has_pip(folder):
        create(folder, root)
    install(folder, root, environ)
    return python_of(folder), True


def active_environment(environ=os.environ) -> Path | None:
    """Folder of the active virtual or conda environment; conda's base does not count as one."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix)
    conda = environ.get("CONDA_PREFIX") if environ.get("CONDA_DEFAULT_ENV") != "base" else None
    for folder in (environ.get("VIRTUAL_ENV"), conda):
        if folder and python_of(Path(folder)).exists():
            return Path(folder)
    return None


def python_of(folder: Path) -> Path:
    """The interpreter of an environment; on Windows a virtual one has it in Scripts, a conda one at its top."""
    if os.name != "nt":
        return folder / "bin" / "python"
    return next((p for p in [folder / "Scripts" / "python.exe"] if p.exists()), folder / "python.exe")


def wanted(root: Path) -> str:
    """Fingerprint of what shall be installed. The path counts: the install is editable, of this checkout.

    FileNotFoundError where that is no checkout.
    """
    texts = [(root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*texts, str(root).encode()])).hexdigest()


def torch_choice(environ=os.environ) -> str | None:
    """TORCH_SPEC and TORCH_INDEX as one text; None when neither is set, so that an earlier choice stays."""
    spec, index = environ.get("TORCH_SPEC", ""), environ.get("TORCH_INDEX", "")
    return f"{spec} {index}".strip() or None


def is_current(folder: Path, root: Path, environ=os.environ) -> bool:
    """Whether the environment's stamp says that these pins, and this torch, are already there. Errors as `wanted`."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamp.get("wanted") == wanted(root) and torch_choice(environ) in (None, stamp.get("torch"))


def has_pip(folder: Path) -> bool:
    """Whether an environment is there and can install."""
    python = python_of(folder)
    return python.exists() and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode


def create(folder: Path, root: Path) -> None:
    """A virtual environment of the running Python, removed again if that fails (SetupError); or pip for one without."""
    if python_of(folder).exists():
        return stage("pip", [python_of(folder), "-m", "ensurepip", "--default-pip"])
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'requires-python = ">=([\d.]+)"', project)
    oldest = found.group(1) if found else "3"
    if sys.version_info[:3] < tuple(int(part) for part in oldest.split(".")):
        raise SetupError(
            f"The course needs Python {oldest} or newer, and this is {sys.version.split()[0]}: "
            "name a newer one, as in `make run PYTHON=python3.12`."
        )
    try:
        stage(f"environment {folder.name}", [sys.executable, "-m", "venv", "--clear", folder])
    except SetupError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SetupError(f"{error}\nOn Debian and Ubuntu, python3-venv provides venv.") from None


def install(folder: Path, root: Path, environ=os.environ) -> None:
    """torch first, because everything else must follow its build; then the project and its pins. SetupError by `stage`.

    StopIteration where constraints.txt pins no torch.
    """
    python, pins = python_of(folder), (root / "constraints.txt").read_text(encoding="utf-8").split()
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    stamp = folder / STAMP
    before = json.loads(stamp.read_text(encoding="utf-8")).get("torch") if stamp.exists() else None
    stamp.unlink(missing_ok=True)
    if torch_choice(environ):
        spec, index = environ.get("TORCH_SPEC") or pinned_torch(pins), environ.get("TORCH_INDEX")
        # pip would take any build of this version for the one asked for
        stage("old torch removed", [python, "-m", "pip", "uninstall", "--yes", "torch"])
        stage(f"{spec} (your choice)", [*pip, spec, *(["--index-url", index] if index else [])])
    elif not before:
        stage(pinned_torch(pins), [*pip, pinned_torch(pins), "-c", root / "constraints.txt"])
    constraints = folder / "lessons_lib_constraints.txt"
    others = [line for line in pins if not line.startswith("torch==")]
    constraints.write_text("\n".join([f"torch=={installed_torch(python)}", *others]), encoding="utf-8")
    stage("lessons_lib and its pins", [*pip, "-c", constraints, "-e", f"{root}[{EXTRAS}]"])
    text = json.dumps({"wanted": wanted(root), "torch": torch_choice(environ) or before})
    stamp.write_text(text, encoding="utf-8")


def add(extra: str, root: Path = ROOT) -> None:
    """Install an extra that is none of EXTRAS into the running environment, unless a stamp says that it is there.

    For what one command alone needs, and what is large or not built for every system. SetupError as `stage`.
    """
    folder = Path(sys.prefix)
    stamp = folder / f"lessons_lib_{extra}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted(root):
        return
    pins = ["-c", folder / "lessons_lib_constraints.txt", "-e", f"{root}[{extra}]"]
    stage(f"{extra} and its pins", [python_of(folder), "-m", "pip", "install", "--quiet", *pins])
    stamp.write_text(wanted(root), encoding="utf-8")


def pinned_torch(pins: list[str]) -> str:
    """The line of constraints.txt that pins torch; StopIteration without one."""
    return next(line for line in pins if line.startswith("torch=="))


def installed_torch(python: Path) -> str:
    """The version of another interpreter's torch, the tag of its build included. CalledProcessError if it has none."""
    ask = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def stage(name: str, command: list) -> None:
    """Run one quiet command with one line of its own: its name, then its seconds; SetupError if it fails."""
    print(f"  {name:<40}", end="", flush=True)
    start = time.perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    print(f"{time.perf_counter() - start:6.0f} s", flush=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise SetupError(f"`{' '.join(map(str, command))}` failed:\n{said[-3000:]}")


def run_again(python: Path, arguments: list[str]) -> int:
    """Run the same command in another interpreter; does not return where the process can be replaced."""
    command = [str(python), "-m", "lessons_lib", *arguments]
    if os.name == "nt":
        return subprocess.call(command)
    os.execv(command[0], command)


def is_running(python: Path) -> bool:
    """Whether `python` belongs to the environment that this process runs in."""
    home = python.parent.parent if python.parent.name in ("bin", "Scripts") else python.parent
    return Path(sys.prefix).resolve() == home.resolve()
