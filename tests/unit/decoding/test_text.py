"""Stop texts and streams, on a tokenizer that cuts text into bytes."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
    assert cut_at("one. two.", ".", since=8) == "one. two"  # the first came before the minimum length
    assert cut_at("one", "two") == "one"
    assert cut_at("one", None) == "one"


@pytest.mark.parametrize("text, stop, since, left", [
    ("xab", ["ab", "b"], 0, "x"),
    ("xab", ["b", "ab"], 2, "x"),  # both were completed by the last character
    ("end\n\n", "\n", 3, "end"),  # one token of two line feeds
    ("a.b;", [";", "."], 3, "a.b"),
    ("a.b", ".", 3, "a.b"),
])  # fmt: skip
def test_of_several_complete_stop_texts_the_first_to_begin_cuts(text, stop, since, left):
    assert cut_at(text, stop, since) == left


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
    assert written[-1].endswith("d")  # nothing waited for an end that need not come


def pieces(tokens, size=1, stop=None) -> tuple[list[str], str]:
    """What a stream wrote before it was told of the end, and all of it."""
    written = []
    stream = TextStream(Bytes(), written.append, stop)
    for start in range(0, len(tokens), size):
        stream(tokens[start : start + size])
    early = list(written)
    stream.end()
    return early, "".join(written)


def test_a_text_that_ends_inside_a_character_streams_its_replacement_at_the_end():
    assert pieces(ids("naïve 漢")[:-1]) == (list("naïve "), "naïve \ufffd")
    assert pieces([]) == ([], "")


def test_a_stop_text_is_not_shown_nor_its_beginning():
    early, text = pieces(ids("one two END"), stop=["END", "x"])
    assert text == "one two " and "E" not in "".join(early)
    assert "".join(early) == "one two "
    assert pieces(ids("one EN"), stop="END")[1] == "one EN"  # it was none: the length ended the text


def test_a_stop_text_that_did_not_end_the_text_is_text():
    assert pieces(ids("a. b."), stop=".")[1] == "a. b"


def test_a_stream_serves_a_second_text_after_the_first_has_ended():
    written = []
    stream = TextStream(Bytes(), written.append)
    for text in ("one", "two"):
        stream(ids(text))
        stream.end()
    assert written == ["one", "two"]


@given(st.text("ab\nï", min_size=1, max_size=12), st.lists(st.text("ab\nï", min_size=1, max_size=3), max_size=2),
       st.integers(0, 12), st.integers(1, 3))  # fmt: skip
def test_the_pieces_of_a_stream_are_the_text_that_is_left(text, stop, least, size):
    """The tokens up to where generate would end, and the text that it would give."""
    tokens, check = ids(text), stop_check(Bytes(), stop)
    assume(least <= len(tokens))  # shorter, it would have gone on
    ends = [n for n in range(max(1, least), len(tokens) + 1) if check and check(tokens[:n])]
    tokens = tokens[: ends[0]] if ends else tokens
    before = len(Bytes().decode(tokens[:-1]).rstrip("\ufffd"))
    assert pieces(tokens, size, stop)[1] == cut_at(Bytes().decode(tokens), stop if ends else None, before)


def test_without_a_place_to_write_to_a_stream_prints(capsys):
    stream = TextStream(Bytes())
    stream([104, 105])
    stream.end()
    assert capsys.readouterr().out == "hi"
