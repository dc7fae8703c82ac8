"""Progress for a person who waits: a bar, or one line.

Batch runs (LESSONS_LIB_BATCH=1) draw no bars, which would fill a kept page, but keep the lines: whoever reads the
page later, or the terminal now, must learn why something takes long or runs another way than asked for.
"""

import os
import sys
from collections.abc import Iterable

from tqdm.auto import tqdm


def batch() -> bool:
    """True where nobody watches: executed notebooks keep no progress bars."""
    return os.environ.get("LESSONS_LIB_BATCH") == "1"


def bar(iterable: Iterable | None = None, total: float | None = None, desc: str = "", unit: str = "it") -> tqdm:
    """A tqdm bar over iterable, or one to `update` by hand up to total. Unit "B" counts bytes as kB, MB."""
    scaled = unit == "B"
    return tqdm(iterable, total=total, desc=desc, unit=unit, unit_scale=scaled, disable=batch(), leave=False)


def say(text: str) -> None:
    """One line to stderr, in batch runs too."""
    print(text, file=sys.stderr, flush=True)
