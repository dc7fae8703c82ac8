"""Progress of long operations: a bar, a line, or a line that ends with the seconds taken.

Notebooks that a program executes show no bars, which would fill a stored page, but keep the lines: a reader should
learn why something takes long or runs in another way than requested.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from tqdm.auto import tqdm

VARIABLE = "LESSONS_LIB_BATCH"
STORING = "LESSONS_LIB_STORING"


def batch() -> bool:
    """Whether a program executes this notebook (papermill, nbval, nbconvert, `run`): no bars and no widgets there.

    Such a program does not allow `input()` in its cells; JupyterLab, Colab, VS Code and consoles do.
    LESSONS_LIB_BATCH=1 or =0 overrides this.
    """
    if VARIABLE in os.environ:
        return os.environ[VARIABLE] == "1"
    ipython = sys.modules.get("IPython")
    request = getattr(ipython and ipython.get_ipython(), "parent_header", None) or {}
    return request.get("content", {}).get("allow_stdin") is False


def storing() -> bool:
    """Whether a lesson is executed for storing; its figures are then checked as they are drawn."""
    return os.environ.get(STORING) == "1"


def start_storing() -> None:
    """Mark, for the kernels started by this process, that their outputs are stored."""
    os.environ[STORING] = "1"


def bar(iterable: Iterable | None = None, total: float | None = None, desc: str = "", unit: str = "it") -> tqdm:
    """A tqdm bar over iterable, or one to `update` by hand up to total. Unit "B" counts bytes as kB, MB."""
    scaled = unit == "B"
    return tqdm(iterable, total=total, desc=desc, unit=unit, unit_scale=scaled, disable=batch(), leave=False)


def say(text: str) -> None:
    """Print one line to stderr, in batch runs too."""
    print(text, file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    """The first line of an error's message without its final period; the error's type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


@contextmanager
def line(name: str) -> Iterator[list[str]]:
    """Print a line to stdout: the name at once, then the outcome and the seconds.

    Yields ["ok"], whose word can be changed. An exception inside prints FAILED and is raised again, Ctrl-C "stopped".
    """
    print(f"{name:<44}", end="", flush=True)
    start, said = perf_counter(), ["ok"]
    try:
        yield said
    except BaseException as error:
        said[0] = "FAILED" if isinstance(error, Exception) else "stopped"
        raise
    finally:
        again = f"\r{name:<44}" if sys.stdout.isatty() else ""  # a bar may have used the line
        print(f"{again}{said[0]}  {perf_counter() - start:.0f} s", flush=True)
