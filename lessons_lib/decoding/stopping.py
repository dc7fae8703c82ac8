"""Where a text ends besides its end-of-text token (every lesson): stop texts, however tokens happen to cut them."""

from collections.abc import Sequence

from lessons_lib.decoding.detokenizer import Detokenizer


class StoppedText:
    """The text of tokens that come one at a time, up to the first stop text. ended: whether one is complete.

    A stop text is looked for in the text as it is shown, without special tokens. One that names a special token, such
    as "<|im_end|>" or "Yes<|im_end|>", is looked for in the text with special tokens.
    TypeError for stop texts that are no text, and without a tokenizer; ValueError for an empty one.
    """

    def __init__(self, tokenizer, stop: str | Sequence[str] | None = None):
        stops = as_texts(stop)
        self._text, self._full_text = Detokenizer(tokenizer), Detokenizer(tokenizer, skip_special_tokens=False)
        added = getattr(tokenizer, "added_tokens_decoder", {}).values() if stops else ()
        self._special = [token.content for token in added if token.special]
        # a stop text that names special tokens -> what is shown of it
        self._named = {text: shown for text in stops if (shown := without(text, self._special)) != text}
        self._stops = [text for text in stops if text not in self._named]
        self._tail = max(map(len, stops), default=1) - 1  # characters that may be the beginning of a stop text
        self._certain: list[str] = []  # the pieces that were returned
        self._held = self._full = ""
        self.ended = False

    @property
    def text(self) -> str:
        """The text so far, should no token follow."""
        return "".join(self._certain) + self.rest()

    def add(self, token: int) -> str:
        """-> the text that is certain to stay: without a stop text, and without what may be the beginning of one."""
        if self.ended:
            return ""
        self._held += self._text.add(token)
        ends = [self._held.find(text) for text in self._stops if text in self._held]
        if self._named:
            ends += self._ends_at_special_tokens(token)
        self.ended = bool(ends)
        certain = min(ends) if ends else max(0, len(self._held) - self._tail)
        new, self._held = self._held[:certain], self._held[certain:]
        self._certain.append(new)
        return new

    def rest(self) -> str:
        """What is left at the end of the text, should no token follow; nothing behind a stop text."""
        return "" if self.ended else self._held + self._text.rest()

    def _ends_at_special_tokens(self, token: int) -> list[int]:
        """Where the text held back ends for each stop text that names special tokens and is complete."""
        full = self._full + self._full_text.add(token)
        self._full = full[max(0, len(full) - self._tail) :]
        at = []
        for text, shown in self._named.items():
            if text in full:
                behind = without(full[full.find(text) + len(text) :], self._special)
                end = max(0, len(self._held) - len(behind))
                start = self._held.rfind(shown, 0, end)
                at.append(start if start >= 0 else end)
        return at


def as_texts(stop: str | Sequence[str] | None) -> list[str]:
    """None, one text or several -> a list. TypeError for anything else, ValueError for an empty text."""
    texts = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"stop must be a text or a list of texts, not {stop!r}")
    if "" in texts:
        raise ValueError("an empty stop text would end every output before it begins; leave it out")
    return list(texts)


def without(text: str, parts: Sequence[str]) -> str:
    """The text with every occurrence of each of `parts` removed."""
    for part in parts:
        text = text.replace(part, "")
    return text
