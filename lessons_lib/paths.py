"""Paths of the clone and of the cache (converted models, measurements of this machine, compiled kernels)."""

import os
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # root of the clone; outside one there are no lessons, tests or benches
VARIABLE = "LESSONS_LIB_CACHE"


def cache_dir() -> Path:
    """The cache folder: $LESSONS_LIB_CACHE, else the user's cache folder.

    If the user's cache folder is not writable, a temporary folder, with a warning. A folder named by the variable is
    used as it is: a filled read-only cache works, and writing to it raises an error.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    folder = user_cache_path("lessons_lib", appauthor=False)
    return folder if _writable(folder) else _temporary(folder)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _temporary(folder: Path) -> Path:
    """A fresh folder, stored in the environment so that later calls and child processes share it."""
    fresh = Path(tempfile.mkdtemp(prefix="lessons_lib-"))
    os.environ[VARIABLE] = str(fresh)
    warnings.warn(
        f"{folder} cannot be written, so models are kept in {fresh}, for this run only; "
        f"set {VARIABLE} to a folder that can be written.",
        stacklevel=3,
    )
    return fresh


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name, then rename it: at no time is it there in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


if os.environ.get(VARIABLE):
    os.environ[VARIABLE] = str(cache_dir())  # absolute, because kernels and tests run in other folders
