"""transformers without its hints and warnings, while it loads and while it runs as a peer (every lesson)."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet(bars: bool = True) -> Iterator[None]:
    """Errors alone are logged within; bars: whether its progress bars stay, as they should for a download."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()
