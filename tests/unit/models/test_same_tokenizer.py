"""Tokenizers are compared token by token and text by text, never by size."""

import copy

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons_lib.models.tokenizers import check_same_tokenizer

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<end>", *LETTERS, "th", "he", "the", "12"]
MERGES = [("t", "h"), ("th", "e"), ("h", "e"), ("1", "2")]


def tokenizer(tokens=TOKENS, merges=MERGES, split=(), special="<end>", chat_template=None):
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special, chat_template=chat_template)


def test_equal_tokenizers_pass_and_tell_how_many_ids_they_use():
    same = tokenizer()
    assert check_same_tokenizer(same, same) == check_same_tokenizer(same, tokenizer()) == len(TOKENS)


def test_two_that_were_found_alike_are_compared_again_only_when_one_has_grown(monkeypatch):
    a, b = tokenizer(), tokenizer()
    check_same_tokenizer(a, b)
    asked, get_vocab = [], type(a).get_vocab
    monkeypatch.setattr(type(a), "get_vocab", lambda self: asked.append(self) or get_vocab(self))
    assert check_same_tokenizer(a, b) == len(TOKENS) and not asked
    b.add_tokens(["more"])
    with pytest.raises(ValueError, match="'more' is missing in one"):
        check_same_tokenizer(a, b)
    assert asked


def test_another_chat_template_or_another_choice_of_padding_is_no_other_tokenizer():
    chat = tokenizer(chat_template="{% for m in messages %}{{ m['content'] }}<end>{% endfor %}")
    padded = copy.deepcopy(chat)
    padded.pad_token = "<end>"
    assert check_same_tokenizer(chat, tokenizer()) == check_same_tokenizer(tokenizer(), padded) == len(TOKENS)


def swap(tokens, i, j):
    tokens = list(tokens)
    tokens[i], tokens[j] = tokens[j], tokens[i]
    return tokens


@pytest.mark.parametrize("other, said", [
    (dict(tokens=swap(TOKENS, 70, 90)), r"token '.' is 70 in one and 90 in the other"),
    (dict(tokens=[*TOKENS, "ĠĠ"]), "token 'ĠĠ' is missing in one and 261 in the other"),
    (dict(tokens=["<stop>", *TOKENS[1:]], special="<stop>"), "token '<end>' is 0 in one and missing"),
    (dict(merges=[*MERGES[2:], *MERGES[:2]]), "cut 'They thought .* differently"),
    (dict(split=[pre_tokenizers.Digits(True)]), r"cut '0 12 .* token 2 is \['12'\] in one and \['1'\]"),
], ids=["swapped ids", "one more token", "another end", "another order of merges", "digits split"])  # fmt: skip
def test_the_first_difference_is_named(other, said):
    with pytest.raises(ValueError, match=said):
        check_same_tokenizer(tokenizer(), tokenizer(**other))


def test_a_special_token_that_the_other_cuts_into_letters_is_found():
    tokens = [*TOKENS, "<mark>"]
    marked = tokenizer(tokens)
    marked.add_special_tokens({"additional_special_tokens": ["<mark>"]})
    with pytest.raises(ValueError, match="cut 'one <mark>two' differently"):
        check_same_tokenizer(marked, tokenizer(tokens))
