"""Stop texts and streams, on a tokenizer that cuts text into bytes."""

import pytest

from lessons_lib.decoding.stopping import cut_at, stop_check
from lessons_lib.decoding.streaming import TextStream


class Bytes:
    """One token a byte: the worst case for stop texts and for characters of several bytes."""

    def decode(self, ids, skip_special_tokens=False):
        return bytes(ids).decode("utf-8", errors="replace")


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("text, stop, ends", [
    ("one two", "two", 7),
    ("one two three", ["three", "two"], 7),
    ("naïve, déjà vu", "déjà", 14),
    ("no such thing", "some", None),
])  # fmt: skip
def test_a_text_stops_at_the_token_that_completes_a_stop_text(text, stop, ends):
    check, tokens = stop_check(Bytes(), stop), ids(text)
    first = next((n for n in range(1, len(tokens) + 1) if check(tokens[:n])), None)
    assert first == ends


def test_the_text_is_cut_before_the_stop_text_that_ended_it():
    assert cut_at("one two", ["three", "two"]) == "one "
    assert cut_at("one. two.", ".") == "one. two"  # the first came before the minimum length
    assert cut_at("one", "two") == "one"
    assert cut_at("one", None) == "one"


def test_an_empty_stop_text_is_refused():
    with pytest.raises(ValueError, match="empty stop text"):
        stop_check(Bytes(), ["a", ""])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stream_writes_whole_characters_and_loses_nothing(size):
    text, written = "naïve 漢字 🙂 end", []
    stream = TextStream(Bytes(), written.append)
    tokens = ids(text)
    for start in range(0, len(tokens), size):
        stream(tokens[start : start + size])
    assert "".join(written) == text
    assert not any("\ufffd" in piece for piece in written)
