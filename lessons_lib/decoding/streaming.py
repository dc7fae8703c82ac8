"""Text as it is written (lesson 01): an `on_tokens` for `generate` that shows what is certain to stay at once."""

from collections.abc import Callable, Sequence
from functools import partial

from lessons_lib.decoding.stopping import as_texts, cut_at

UNREADABLE = "\ufffd"  # what bytes decode to that are no whole character


class TextStream:
    """Decode tokens as they come and hand on the text; `generate(..., on_tokens=TextStream(tokenizer))`.

    Together the pieces are Output.text. Raises nothing of its own.
    """

    def __init__(
        self,
        tokenizer,
        write: Callable[[str], None] | None = None,
        stop: str | Sequence[str] | None = None,
    ):
        """write: where the text goes; None prints it. stop: the stop texts that generate is given, never shown."""
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)
        self._write = write or partial(print, end="", flush=True)
        self._stop, self._wait = stop, max((len(text) for text in as_texts(stop)), default=1) - 1
        self._start()

    def __call__(self, tokens: Sequence[int]) -> None:
        """Write what these tokens make certain: no character that is incomplete, no beginning of a stop text."""
        for token in tokens:
            since = len(self._text.rstrip(UNREADABLE))
            self._ids.append(token)
            self._text = self._decode(self._ids)
            self._final = cut_at(self._text, self._stop, since)  # the text, should this token be the last
        certain = self._text.rstrip(UNREADABLE)
        self._show(certain[: max(0, min(len(certain) - self._wait, len(self._final)))])

    def end(self) -> None:
        """Write what was held back, an incomplete character as its replacement; `generate` calls it at the end."""
        self._show(self._final)
        self._start()

    def _start(self) -> None:
        self._ids: list[int] = []
        self._text = self._final = ""
        self._shown = 0

    def _show(self, text: str) -> None:
        if len(text) > self._shown:
            self._write(text[self._shown :])
            self._shown = len(text)
