"""Tokens as words: one line that fits a cell."""

import pytest

from lessons_lib.figures.masks import word


class Letters:
    """Token 0 is a blank, 1 a line end, others letters."""

    def decode(self, tokens):
        return "".join(" \nabc"[token] for token in tokens)


@pytest.mark.parametrize("tokens, text", [([2], "a"), ([0, 3, 0], "b"), ([1], "\\n"), ([2, 0, 1, 4], "a \\nc")])
def test_a_word_is_one_line_without_blanks_around_it(tokens, text):
    assert word(Letters(), *tokens) == text
