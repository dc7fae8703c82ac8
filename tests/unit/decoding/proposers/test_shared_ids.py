"""Whose tokens a draft speaks: paddings may differ, tokenizers may not, and bad settings are refused."""

from types import SimpleNamespace

import pytest
import torch
from support.distributions import seeded
from support.oracle import PROMPT, N
from support.proposers import drafted

from lessons_lib import DraftModel, Sampling, generate
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.models import LanguageModel, tiny


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


@pytest.mark.parametrize("mode", ["greedy", "iid"])
@pytest.mark.parametrize("sizes", [(97, 112), (112, 97), (97, 97)], ids=str)
def test_paddings_of_one_tokenizer_may_differ(sizes, mode):
    target, draft = (TransformersTarget(tiny(vocab_size=size), Words(90)) for size in sizes)
    plain = generate(target, PROMPT, max_new_tokens=60).ids
    proposer = DraftModel(draft, 3, mode, generator=seeded(0))
    assert generate(target, PROMPT, proposer, max_new_tokens=60).ids == plain
    proposer.reset(target, PROMPT)
    tree = drafted(proposer, PROMPT)
    assert max(tree.tokens) < 90
    for row in (children.q for children in tree.children.values() if mode == "iid"):
        assert row.shape == (sizes[0],) and not row[90:].any()
        assert float(row.sum()) == pytest.approx(1)


def test_an_id_that_is_no_token_silences_the_draft():
    target, draft = (TransformersTarget(tiny(vocab_size=size), Words(90)) for size in (112, 97))
    plain = generate(target, [5, 110, 3], max_new_tokens=12).ids
    out = generate(target, [5, 110, 3], DraftModel(draft, 3), max_new_tokens=12)
    assert out.ids == plain and not any(s.draft_calls for s in out.stats)


def test_a_language_model_may_be_target_and_draft(network, greedy):
    model = LanguageModel(network, Words(97), "tiny", "cpu", torch.float64)
    assert generate(model, PROMPT, DraftModel(model), max_new_tokens=N).ids == greedy


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
        generate(target, PROMPT, DraftModel(draft), max_new_tokens=4)


@pytest.mark.parametrize("bad, said", [
    (dict(mode="best"), "mode 'best' is unknown; one of greedy, iid"),
    (dict(gamma=0), "gamma must be at least 1, not 0"),
    (dict(children=(2, 0)), "children must be at least 1 at every depth"),
    (dict(sampling=Sampling()), 'mode "greedy" samples nothing'),
])  # fmt: skip
def test_impossible_settings_are_refused(network, bad, said):
    with pytest.raises(ValueError, match=said):
        DraftModel(network, **bad)


def test_what_cannot_decode_is_no_draft():
    with pytest.raises(TypeError, match="str cannot decode"):
        DraftModel("smollm2-135m")
