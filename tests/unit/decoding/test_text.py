"""Text from tokens: what a detokenizer returns, where a stop text ends it, what a stream shows."""

from functools import cache

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.examples import examples
from support.small_tokenizers import ALL, SEP, byte_level, metaspace, word_piece
from transformers import StopStringCriteria

from lessons_lib.decoding.text import Detokenizer, StoppedText, TextStream


class Bytes:
    """One token a byte: the worst case for stop texts and for characters of several bytes."""

    def decode(self, ids, **_):
        return bytes(ids).decode("utf-8", errors="replace")


def ids(text: str) -> list[int]:
    return list(text.encode())


def read(detokenizer, tokens) -> str:
    return "".join(map(detokenizer.add, tokens)) + detokenizer.rest()


tokenizer_of = cache(lambda make: make())
WITHOUT_A_TOKEN = 1000


@st.composite
def token_sequences(draw, most=32):
    """A tokenizer, and any of its ids, special ones and ids without a token among them."""
    tokenizer = tokenizer_of(draw(st.sampled_from(ALL)))
    real = st.integers(0, len(tokenizer) - 1)
    texts = st.text("aE\né漢🙂 ND'", max_size=6).map(lambda text: tokenizer(text).input_ids)
    special = st.sampled_from([tokenizer.convert_tokens_to_ids(SEP), WITHOUT_A_TOKEN])
    parts = draw(st.lists(texts | st.lists(real, max_size=4) | st.lists(special, max_size=9), max_size=12))
    return tokenizer, [token for part in parts for token in part][:most]


@examples(300)
@given(token_sequences())
def test_token_by_token_the_text_is_that_of_all_tokens_at_once(case):
    """Where bytes make no characters, a tokenizer may take back characters that were whole: those stay."""
    tokenizer, tokens = case
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    assume("\ufffd" not in whole or type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel")
    assert read(Detokenizer(tokenizer), tokens) == whole


@examples(100)
@given(token_sequences())
def test_text_that_was_returned_never_ends_inside_a_character(case):
    tokenizer, tokens = case
    detokenizer = Detokenizer(tokenizer)
    assert not any(detokenizer.add(token).endswith("\ufffd") for token in tokens)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("kind", ["text", "special tokens", "ids without a token", "broken characters"])
def test_a_token_costs_the_decoding_of_a_few_however_long_the_text_is(make, kind):
    tokenizer, decoded = make(), []
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **options: decoded.append(len(ids)) or decode(ids, **options)
    broken = [i for token, i in tokenizer.get_vocab().items() if token in ("<0xC3>", "Ã")]
    tokens = {
        "text": tokenizer("a b END ").input_ids,
        "special tokens": tokenizer.convert_tokens_to_ids([SEP]),
        "ids without a token": [WITHOUT_A_TOKEN],
        "broken characters": broken or [0],
    }[kind]
    costs = []
    for length in (1000, 4000):
        decoded.clear()
        read(Detokenizer(tokenizer), tokens * (length // len(tokens)))
        costs.append(sum(decoded) / length)
    assert costs[1] < 1.1 * costs[0] and costs[1] < 70
    assert costs[1] < 6 or kind != "text"


def test_spaces_are_not_cleaned_up_since_that_would_rewrite_text_already_shown():
    tokenizer = word_piece(clean_up=True)
    tokens = tokenizer("a do n ' t .").input_ids
    assert tokenizer.decode(tokens) == "a don't."
    assert read(Detokenizer(tokenizer), tokens) == "a do n ' t ."


def test_a_special_token_between_the_bytes_of_a_character_is_not_seen():
    tokenizer = byte_level()
    first, *others = tokenizer("🙂").input_ids
    sep = tokenizer.convert_tokens_to_ids(SEP)
    assert read(Detokenizer(tokenizer), [first, sep, *others]) == "🙂"


def ends_at(tokenizer, tokens, stop) -> int | None:
    """After how many tokens a stop text is complete."""
    text = StoppedText(tokenizer, stop)
    for count, token in enumerate(tokens, 1):
        text.add(token)
        if text.ended:
            return count
    return None


@pytest.mark.parametrize("text, stop, ends, left", [
    ("one two", "two", 7, "one "),
    ("one two three", ["three", "two"], 7, "one "),
    ("naïve, déjà vu", "déjà", 14, "naïve, "),
    ("no such thing", "some", None, "no such thing"),
    ("no such thing", [], None, "no such thing"),
    ("no such thing", None, None, "no such thing"),
    ("xab", ["ab", "b"], 3, "x"),  # both are complete with the last character: the first to begin counts
    ("xab", ["b", "ab"], 3, "x"),
    ("one EN", "END", None, "one EN"),
])  # fmt: skip
def test_a_text_ends_with_the_token_that_completes_a_stop_text_and_is_cut_before_it(text, stop, ends, left):
    assert ends_at(Bytes(), ids(text), stop) == ends
    assert read(StoppedText(Bytes(), stop), ids(text)) == left


@pytest.mark.parametrize("between", [SEP, WITHOUT_A_TOKEN], ids=["special", "without a token"])
@pytest.mark.parametrize("count", [1, 9, 200])
@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_a_stop_text_counts_across_tokens_that_are_not_shown(make, count, between):
    tokenizer = make()
    between = between if between == WITHOUT_A_TOKEN else tokenizer.convert_tokens_to_ids(between)
    a, e, n, d = (tokenizer.convert_tokens_to_ids(token) for token in ("a", "E", "ND", "D"))
    tail = [n] if make is metaspace else tokenizer("ND").input_ids
    tokens = [a, e, *[between] * count, *tail]
    assert ends_at(tokenizer, [*tokens, a, d], "END") == len(tokens)
    assert read(StoppedText(tokenizer, "END"), [*tokens, a]) == "a"


def test_a_stop_text_is_found_in_a_long_run_of_bytes_that_a_tokenizer_decodes_all_or_none():
    tokenizer = metaspace()
    tokens = tokenizer("漢字" * 9 + "🙂" + "漢").input_ids
    assert ends_at(tokenizer, tokens, "🙂") == len(tokens) - 3
    assert read(StoppedText(tokenizer, "🙂"), tokens) == "漢字" * 9


def test_an_incomplete_character_is_no_replacement_character_that_a_stop_text_asks_for():
    tokens = ids("a漢")[:-1]
    assert ends_at(Bytes(), tokens, "\ufffd") is None
    assert ends_at(Bytes(), [*tokens, *ids("b")], "\ufffd") == 4


SHORT = st.text("abï ", min_size=1, max_size=3)


@examples(200)
@given(st.text("abï ", min_size=1, max_size=12), st.lists(SHORT, min_size=1, max_size=2))
def test_a_text_ends_where_it_ends_in_transformers(text, stop):
    tokenizer = tokenizer_of(byte_level)
    tokens, criterion = tokenizer(text).input_ids, StopStringCriteria(tokenizer, stop)
    done = [n for n in range(1, len(tokens) + 1) if criterion(torch.tensor([tokens[:n]]), None).item()]
    assert ends_at(tokenizer, tokens, stop) == (done[0] if done else None)


@pytest.mark.parametrize("stop, error, said", [
    (["a", ""], ValueError, "empty stop text"),
    (5, TypeError, "stop must be a text or a list of texts, not 5"),
    ([1], TypeError, "stop must be a text or a list of texts"),
    (b"a", TypeError, "stop must be a text or a list of texts"),
])  # fmt: skip
def test_what_is_no_stop_text_is_refused(stop, error, said):
    with pytest.raises(error, match=said):
        StoppedText(Bytes(), stop)


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


def pieces(tokens, size=1, stop=None, tokenizer=None) -> tuple[list[str], str]:
    """What a stream wrote before the end, and all of it."""
    written = []
    stream = TextStream(tokenizer or Bytes(), written.append, stop)
    for start in range(0, len(tokens), size):
        stream(tokens[start : start + size])
    early = list(written)
    stream.end()
    return early, "".join(written)


def test_a_stop_text_is_not_shown_nor_its_beginning():
    early, text = pieces(ids("one two END"), stop=["END", "x"])
    assert text == "one two " and "E" not in "".join(early)
    assert "".join(early) == "one two "
    assert pieces(ids("one EN"), stop="END")[1] == "one EN"  # it was none: the length ended the text


def test_a_stream_serves_a_second_text_after_the_first_has_ended():
    written = []
    stream = TextStream(Bytes(), written.append)
    for text in ("one", "two"):
        stream(ids(text))
        stream.end()
    assert written == ["one", "two"]


@examples(200)
@given(token_sequences(), st.lists(st.text("aEND \ufffdé'", min_size=1, max_size=3), max_size=2), st.integers(1, 3))
def test_the_pieces_of_a_stream_are_the_text_whatever_the_tokens_and_however_many_come_at_once(case, stop, size):
    tokenizer, tokens = case
    early, text = pieces(tokens, size, stop, tokenizer)
    read(stopped := StoppedText(tokenizer, stop), tokens)
    assert text == stopped.text
    if not stop:
        assert text == read(Detokenizer(tokenizer), tokens)
    assert not any(one in "".join(early) for one in stop)


def test_without_a_place_to_write_to_a_stream_prints(capsys):
    stream = TextStream(Bytes())
    stream([104, 105])
    stream.end()
    assert capsys.readouterr().out == "hi"
