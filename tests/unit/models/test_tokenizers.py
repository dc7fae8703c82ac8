"""Tokenizers are compared token by token and text by text; ids that a model does not use may differ."""

import copy
from types import SimpleNamespace

import pytest
from support.distributions import seeded
from support.oracle import PROMPT
from support.proposers import drafted
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons_lib import DraftModel, generate
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.models import tiny
from lessons_lib.models.tokenizers import check_same_tokenizer, shared_ids

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


def test_one_that_has_grown_is_compared_again():
    a, b = tokenizer(), tokenizer()
    check_same_tokenizer(a, b)
    b.add_tokens(["more"])
    with pytest.raises(ValueError, match="'more' is missing in one"):
        check_same_tokenizer(a, b)


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
    (dict(split=[pre_tokenizers.Digits(True)]), "cut '0 12 .* differently"),
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


class Words:
    """The parts of a tokenizer that are asked for; ids 0 to `size` - 1."""

    all_special_tokens, eos_token_id, chat_template = (), None, None

    def __init__(self, size: int):
        self.size = size

    def get_vocab(self):
        return {f"w{i}": i for i in range(self.size)}

    def __len__(self):
        return self.size

    def __call__(self, text, add_special_tokens=True):
        return SimpleNamespace(input_ids=[len(word) for word in text.split()])

    def decode(self, ids, **_):
        return " ".join(f"w{i}" for i in ids)


@pytest.mark.parametrize("mode", ["unsampled", "iid"])
@pytest.mark.parametrize("sizes", [(97, 112), (112, 97), (97, 97)], ids=str)
def test_paddings_of_one_tokenizer_may_differ(sizes, mode):
    target, draft = (TransformersTarget(tiny(vocab_size=size), Words(90)) for size in sizes)
    plain = generate(target, PROMPT, max_new_tokens=24).ids
    proposer = DraftModel(draft, 3, mode, generator=seeded(0))
    assert generate(target, PROMPT, proposer, max_new_tokens=24).ids == plain
    proposer.reset(target, PROMPT)
    tree = drafted(proposer, PROMPT)
    assert max(tree.tokens) < 90
    for row in (children.q for children in tree.children.values() if mode == "iid"):
        assert row.shape == (sizes[0],) and not row[90:].any()
        assert float(row.sum()) == pytest.approx(1)


def test_an_id_that_is_no_token_stops_the_draft():
    target, draft = (TransformersTarget(tiny(vocab_size=size), Words(90)) for size in (112, 97))
    plain = generate(target, [5, 110, 3], max_new_tokens=12).ids
    out = generate(target, [5, 110, 3], DraftModel(draft, 3), max_new_tokens=12)
    assert out.ids == plain and not any(s.draft_calls for s in out.stats)


@pytest.mark.parametrize("target, draft, said", [
    ((97, None), (98, None), "vocabularies of one size, not 97 and 98"),
    ((97, 97), (97, None), "the draft has no tokenizer to compare"),
    ((97, None), (97, 97), "the target has no tokenizer to compare"),
    ((97, 96), (97, 95), "token 'w95' is 95 in one and missing in the other"),
    ((97, 97), (96, 97), "ids up to 96, but target and draft have logits for 97 and 96"),
])  # fmt: skip
def test_a_draft_of_another_vocabulary_is_refused(target, draft, said):
    target, draft = (TransformersTarget(tiny(vocab_size=v), words and Words(words)) for v, words in (target, draft))
    with pytest.raises(ValueError, match=said):
        shared_ids(target, draft)
