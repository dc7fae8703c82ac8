"""Text in and out (lesson 01): encode a prompt, decode tokens as they are generated, cut the text at a stop text.

Decoding the whole text again for every new token takes quadratic time. A `Detokenizer` decodes only the last few
tokens: some that were decoded before, as context, and the new ones.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from lessons_lib.decoding.checks import kind, whole

Prompt = str | Sequence[int] | Tensor | np.ndarray | Mapping[str, Sequence[int] | Tensor] | Sequence[dict[str, str]]
UNREADABLE = "\ufffd"  # the replacement character, to which the bytes of an incomplete character decode
PATIENCE = 32  # a Detokenizer holds back an incomplete character for at most this many tokens


def encode(target, prompt: Prompt) -> list[int]:
    """Convert a prompt to T token ids. prompt: text, ids (T) or (1, T), a tokenizer's output for one text, or messages.

    Raises ValueError if the prompt is empty, has ids outside the vocabulary, or has messages but there is no chat
    template; TypeError for several prompts, other types, and text or messages without a tokenizer.
    """
    if isinstance(prompt, str):
        ids = _tokenizer(target)(prompt).input_ids
    elif isinstance(prompt, Mapping) and "input_ids" in prompt:
        ids = token_ids(prompt["input_ids"])
        if "attention_mask" in prompt:  # drop padding, marked by 0
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
    """Ids (T) or (1, T) as a list of T integers, not checked against the vocabulary.

    Raises TypeError for other values and for several prompts.
    """
    row = one_row(prompt)
    wrong = [token for token in row if not whole(token)]
    if wrong and isinstance(wrong[0], str | Sequence | Mapping):
        raise TypeError("generate continues one prompt; call it once for each, or use an Engine for several")
    if wrong:
        raise TypeError(f"token ids must be integers, not {kind(wrong[0])}")
    return list(map(int, row))


def one_row(values: Sequence | Tensor | np.ndarray) -> list:
    """Values (T) or (1, T) as a list of T values. Several rows are returned unchanged. Raises TypeError if not a
    sequence, tensor or array."""
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


class Detokenizer:
    """Decodes tokens one at a time. Text that was returned never changes, whatever tokens follow.

    The text of a token depends on the tokens before it: a space at the beginning of a text is dropped, and the bytes
    of one character may be spread over several tokens. The clean-up of spaces in transformers is switched off, because
    it changes text that was already shown.
    """

    def __init__(self, tokenizer):
        if tokenizer is None:
            raise TypeError("text and stop texts need a tokenizer, such as that of a model from lessons_lib.load")
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)
        if getattr(tokenizer, "clean_up_tokenization_spaces", False):
            self._decode = partial(self._decode, clean_up_tokenization_spaces=False)
        self._ids: list[int] = []  # the context, then the new tokens
        self._context = 0  # number of tokens in the context
        self._text = ""  # the decoded text of _ids
        self._returned = 0  # number of characters of _text that were returned

    def add(self, token: int) -> str:
        """Add a token -> the new text that later tokens cannot change: all but an incomplete character at the end."""
        # Decode the context and the new tokens
        self._ids.append(token)
        text = self._decode(self._ids)
        complete, late = not text.endswith(UNREADABLE), len(self._ids) - self._context > PATIENCE
        if complete and text == self._text and (text or late):
            self._ids.pop()  # no text: a special token, or an id unknown to the tokenizer
            return ""
        # Return the complete characters that were not returned before
        self._text = text
        certain = text if late else text.rstrip(UNREADABLE)
        new = certain[self._returned :]
        self._returned = max(self._returned, len(certain))
        if complete or late:
            self._move_context()
        return new

    def rest(self) -> str:
        """The text held back at the end: an incomplete character, as the replacement character."""
        return self._text[self._returned :]

    def _move_context(self) -> None:
        """Make the new tokens the context, if they decode to any text by themselves."""
        newest = self._ids[self._context :]
        if text := self._decode(newest):
            self._ids, self._context = newest, len(newest)
            self._text, self._returned = text, len(text)


class StoppedText:
    """Decodes tokens one at a time, up to the first stop text. ended: whether a stop text is complete.

    Stop texts are searched in the text without special tokens. Special tokens that end a text are the target's `eos`.
    """

    def __init__(self, tokenizer, stop: str | Sequence[str] | None = None):
        self._text, self._stops = Detokenizer(tokenizer), as_texts(stop)
        # characters held back: the beginning of a stop text perhaps
        self._tail = max(map(len, self._stops), default=1) - 1
        self._certain: list[str] = []  # the pieces returned so far
        self._held = ""
        self.ended = False

    @property
    def text(self) -> str:
        """The whole text, if no further token follows."""
        return "".join(self._certain) + self.rest()

    def add(self, token: int) -> str:
        """Add a token -> the new text before a stop text, except an ending that may be the beginning of a stop text."""
        if self.ended:
            return ""
        # Search the text held back for stop texts
        self._held += self._text.add(token)
        ends = [self._held.find(text) for text in self._stops if text in self._held]
        self.ended = bool(ends)
        # Return the text before the first stop text, or all but the last _tail characters
        certain = min(ends) if ends else max(0, len(self._held) - self._tail)
        new, self._held = self._held[:certain], self._held[certain:]
        self._certain.append(new)
        return new

    def rest(self) -> str:
        """The text held back, if no further token follows. Empty after a stop text."""
        return "" if self.ended else self._held + self._text.rest()


def as_texts(stop: str | Sequence[str] | None) -> list[str]:
    """Convert None, one text or several to a list. Raises TypeError for other types, ValueError for an empty text."""
    texts = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"stop must be a text or a list of texts, not {stop!r}")
    if "" in texts:
        raise ValueError("an empty stop text would end every output before it begins; leave it out")
    return list(texts)


class TextStream:
    """Prints text as it is generated: `generate(..., on_tokens=TextStream(model.tokenizer))`.

    write: called with every piece of text; None prints it. stop: the same stop texts as passed to `generate`; they are
    not shown. All pieces together equal Output.text. The cost per token does not grow with the text.
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
        """Write the new text, except an incomplete character or a possible beginning of a stop text at its end."""
        self._show("".join(map(self._text.add, tokens)))

    def end(self) -> None:
        """Write the text held back and start a new text. `generate` calls it after the last step."""
        self._show(self._text.rest())
        self._text = self._new_text()

    def _show(self, text: str) -> None:
        if text:
            self._write(text)
