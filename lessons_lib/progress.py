"""Progress for a person who waits: a bar, one line, or one that ends with the seconds taken.

Notebooks that a program executes draw no bars, which would fill a kept page, but keep the lines: whoever reads the
page later, or the terminal now, must learn why something takes long or runs another way than asked for.
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
    """True in a notebook that a program executes (papermill, nbval, nbconvert, `run`): no bars and no widgets there.

    Such a program says with every cell that it cannot answer `input()`; JupyterLab, Colab, VS Code and consoles can.
    LESSONS_LIB_BATCH=1 or =0 decides instead.
    """
    if VARIABLE in os.environ:
        return os.environ[VARIABLE] == "1"
    ipython = sys.modules.get("IPython")
    request = getattr(ipython and ipython.get_ipython(), "parent_header", None) or {}
    return request.get("content", {}).get("allow_stdin") is False


def storing() -> bool:
    """True where a lesson is executed to be stored, and its figures are checked as they are drawn."""
    return os.environ.get(STORING) == "1"


def start_storing() -> None:
    """Tell the kernels of this process, which inherit it, that their outputs are stored."""
    os.environ[STORING] = "1"


def bar(iterable: Iterable | None = None, total: float | None = None, desc: str = "", unit: str = "it") -> tqdm:
    """A tqdm bar over iterable, or one to `update` by hand up to total. Unit "B" counts bytes as kB, MB."""
    scaled = unit == "B"
    return tqdm(iterable, total=total, desc=desc, unit=unit, unit_scale=scaled, disable=batch(), leave=False)


def say(text: str) -> None:
    """One line to stderr, in batch runs too."""
    print(text, file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    """The first line of what an error says, without its end mark, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


@contextmanager
def line(name: str) -> Iterator[list[str]]:
    """One line to stdout: the name at once, then how it went, and the seconds. Gives ["ok"], whose word can change.

    What is raised within is raised again, behind FAILED.
    """
    print(f"{name:<44}", end="", flush=True)
    start, said = perf_counter(), ["ok"]
    try:
        yield said
    except Exception:
        said[0] = "FAILED"
        raise
    finally:
        again = f"\r{name:<44}" if sys.stdout.isatty() else ""  # a bar may have taken the line
        print(f"{again}{said[0]}  {perf_counter() - start:.0f} s", flush=True)
