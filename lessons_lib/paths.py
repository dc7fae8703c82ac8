"""Paths of the clone and of the cache (converted models, measurements of this machine, compiled kernels)."""

import os
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[1]  # root of the clone; outside one there are no lessons, tests or benches
VARIABLE = "LESSONS_LIB_CACHE"


def cache_dir() -> Path:
    """The cache folder: $LESSONS_LIB_CACHE, else the user's cache folder. A filled one works read-only, too."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    return user_cache_path("lessons_lib", appauthor=False)


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
