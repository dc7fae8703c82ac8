"""Where the checkout lies, and the cache: converted models, measurements of this machine, the compiler's kernels."""

import os
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the checkout; outside one there are no lessons, tests or bench
VARIABLE = "LESSONS_LIB_CACHE"


def cache_dir() -> Path:
    """Folder of everything that is kept between runs: $LESSONS_LIB_CACHE, else the user's cache folder.

    Where the user's cache folder cannot be written, a temporary folder with a warning. A folder named by
    the variable is taken as it is: a filled read-only cache serves, and whoever writes there reports errors.
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
    """A fresh folder, left in the environment so that later calls and child processes share it."""
    fresh = Path(tempfile.mkdtemp(prefix="lessons_lib-"))
    os.environ[VARIABLE] = str(fresh)
    warnings.warn(
        f"{folder} cannot be written, so models are kept in {fresh}, for this run only; "
        f"set {VARIABLE} to a folder that can be written.",
        stacklevel=3,
    )
    return fresh
