"""Text in and out (lesson 01): a prompt becomes token ids; tokens become text as they are generated, up to a stop text.

Decoding the whole text anew for every token takes time that grows with the square of its length. A `Detokenizer`
decodes only the last few tokens: some whose text is known, as context, and the new ones after them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from lessons_lib.decoding.proposers import whole

Prompt = str | Sequence[int] | Tensor | np.ndarray | Mapping[str, Sequence[int] | Tensor] | Sequence[dict[str, str]]
UNREADABLE = "\ufffd"  # what bytes decode to that are no whole character
PATIENCE = 32  # tokens without text, or with an incomplete character at the end, after which it waits no longer


def encode(target, prompt: Prompt) -> list[int]:
    """Text, ids (T) or (1, T), what a tokenizer returns for one text, or messages -> T token ids.

    Raises ValueError if there are none, if one is not in the vocabulary, and for messages without a chat template;
    TypeError for text or messages without a tokenizer, for several prompts, and for anything else.
    """
    if isinstance(prompt, str):
        ids = _tokenizer(target)(prompt).input_ids
    elif isinstance(prompt, Mapping) and "input_ids" in prompt:
        ids = token_ids(prompt["input_ids"])
        if "attention_mask" in prompt:  # 0 marks padding
            ids = [token for token, real in zip(ids, one_row(prompt["attention_mask"]), strict=True) if real]
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(m, Mapping) for m in prompt):
        ids = _chat_ids(target, list(prompt))
    else:
        ids = token_ids(prompt)
    if not ids:
        raise ValueError("the prompt is empty; give at least one token")
    if outside := [token for token in ids if not 0 <= token < target.vocab_size]:
        raise ValueError(f"token id {outside[0]} is not in this model's vocabulary of {target.vocab_size}")
    return ids


def token_ids(prompt: Sequence[int] | Tensor | np.ndarray) -> list[int]:
    """(T) or (1, T) -> T ids, unchecked. TypeError for anything but integers, and for several rows."""
    row = one_row(prompt)
    wrong = [token for token in row if not whole(token)]
    if wrong and isinstance(wrong[0], str | Sequence | Mapping):
        raise TypeError("generate continues one prompt; call it once for each, or use an Engine for several")
    if wrong:
        raise TypeError(f"token ids must be integers, not {kind(wrong[0])}")
    return list(map(int, row))


def one_row(values: Sequence | Tensor | np.ndarray) -> list:
    """(T) or (1, T), tensors or arrays at either level -> T values of any kind; several rows stay as they are.

    TypeError for what is no sequence.
    """
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"a prompt is a text, token ids or a list of messages, not {kind(values)}")
    row = [value.tolist() if isinstance(value, Tensor | np.ndarray) else value for value in values]
    return list(row[0]) if len(row) == 1 and isinstance(row[0], list | tuple) else row


def _tokenizer(target):
    if target.tokenizer is None:
        raise TypeError("this target has no tokenizer: pass token ids, or a model from lessons_lib.load")
    return target.tokenizer


def _chat_ids(target, messages: list[Mapping]) -> list[int]:
    if not all("role" in m and ("content" in m or "tool_calls" in m) for m in messages):
        raise TypeError('each message needs a role and a content, such as {"role": "user", "content": "Hello"}')
    tokenizer = _tokenizer(target)
    if getattr(tokenizer, "chat_template", "") is None:
        raise ValueError("this model's tokenizer has no chat template: pass the prompt as text")
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def kind(value) -> str:
    """What an argument is, for error messages."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


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


class TextStream:
    """Prints text as it is generated: `generate(..., on_tokens=TextStream(model.tokenizer))`.

    write: where the text goes (None prints it). stop: the stop texts that `generate` is given; they are never shown.
    Together the pieces are Output.text. A token costs the same however long the text is. TypeError without a tokenizer.
    """

    def __init__(
        self,
        tokenizer,
        write: Callable[[str], None] | None = None,
        stop: str | Sequence[str] | None = None,
    ):
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
