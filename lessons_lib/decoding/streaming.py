"""Text as it is written (lesson 01): an `on_tokens` for `generate` that shows what is certain to stay at once."""

from collections.abc import Callable, Sequence
from functools import partial

from lessons_lib.decoding.stopping import StoppedText


class TextStream:
    """Decode tokens as they come and hand on the text; `generate(..., on_tokens=TextStream(tokenizer))`.

    Together the pieces are Output.text. A token costs the same however long the text is.
    """

    def __init__(
        self,
        tokenizer,
        write: Callable[[str], None] | None = None,
        stop: str | Sequence[str] | None = None,
    ):
        """write: where the text goes; None prints it. stop: the stop texts that generate is given, never shown.

        TypeError without a tokenizer.
        """
        self._write = write or partial(print, end="", flush=True)
        self._new_text = partial(StoppedText, tokenizer, stop)
        self._text = self._new_text()

    def __call__(self, tokens: Sequence[int]) -> None:
        """Write what these tokens make certain: no character that is incomplete, no beginning of a stop text."""
        self._show("".join(map(self._text.add, tokens)))

    def end(self) -> None:
        """Write what was held back, an incomplete character as its replacement; `generate` calls it at the end."""
        self._show(self._text.rest())
        self._text = self._new_text()

    def _show(self, text: str) -> None:
        if text:
            self._write(text)
