"""Text as it is written: an `on_tokens` for `generate` that prints whole characters as soon as they are whole."""

from collections.abc import Callable
from functools import partial


class TextStream:
    """Decode tokens as they come and hand on the text; `generate(..., on_tokens=TextStream(tokenizer))`."""

    def __init__(self, tokenizer, write: Callable[[str], None] | None = None):
        """write: where the text goes; None prints it."""
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)
        self._write = write or partial(print, end="", flush=True)
        self._ids: list[int] = []
        self._written = ""

    def __call__(self, tokens: list[int]) -> None:
        """Write what these tokens add; a character that is still incomplete waits for its last token."""
        self._ids += tokens
        text = self._decode(self._ids)
        if tokens and not text.endswith("\ufffd"):
            self._write(text[len(self._written) :])
            self._written = text
