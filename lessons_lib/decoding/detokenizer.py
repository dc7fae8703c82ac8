"""Text from tokens that come one at a time (lesson 01).

Decoding the whole text anew for every token takes time that grows with the square of its length. A `Detokenizer`
decodes only the last few tokens: some whose text is known, as context, and the new ones behind them.
"""

from functools import partial

UNREADABLE = "\ufffd"  # what bytes decode to that are no whole character
PATIENCE = 32  # tokens without text, or with an incomplete character at the end, after which it waits no longer


class Detokenizer:
    """Decodes tokens one at a time. Text that it has returned never changes, whatever tokens follow.

    A token's text depends on the tokens before it: a space at the beginning of a text is dropped, a character may have
    its bytes in several tokens. transformers' clean-up of spaces is left out, since it rewrites text already shown.
    TypeError without a tokenizer.
    """

    def __init__(self, tokenizer, skip_special_tokens: bool = True):
        if tokenizer is None:
            raise TypeError("text and stop texts need a tokenizer, such as that of a model from lessons_lib.load")
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
        if getattr(tokenizer, "clean_up_tokenization_spaces", False):
            self._decode = partial(self._decode, clean_up_tokenization_spaces=False)
        self._ids: list[int] = []  # the context, then the tokens since
        self._context = 0  # tokens of the context
        self._text = ""  # the text of them all
        self._returned = 0  # how many characters of it were returned

    def add(self, token: int) -> str:
        """-> the text that this token makes certain: all but an incomplete character at the end."""
        self._ids.append(token)
        text = self._decode(self._ids)
        complete, late = not text.endswith(UNREADABLE), len(self._ids) - self._context > PATIENCE
        if complete and text == self._text and (text or late):
            self._ids.pop()  # a token without text: a special token, or an id that the tokenizer does not know
            return ""
        self._text = text
        certain = text if late else text.rstrip(UNREADABLE)
        new = certain[self._returned :]
        self._returned = max(self._returned, len(certain))
        if complete or late:
            self._move_context()
        return new

    def rest(self) -> str:
        """What is left at the end of the text: an incomplete character, as its replacement."""
        return self._text[self._returned :]

    def _move_context(self) -> None:
        """The tokens since the context become the context, once they have text of their own."""
        newest = self._ids[self._context :]
        if text := self._decode(newest):
            self._ids, self._context = newest, len(newest)
            self._text, self._returned = text, len(text)
