"""Prompt lookup against transformers: the same draft tokens on random ids, the same text and as many passes."""

import random
from unittest import mock

import pytest
import torch
from support.proposers import drafted
from support.toys import choosing
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from lessons_lib import PromptLookup, generate
from lessons_lib.models import tiny

EOS = 2


@pytest.mark.parametrize("alphabet", [3, 50])
@pytest.mark.parametrize("max_ngram, num_tokens", [(1, 3), (2, 10), (3, 5)])
def test_drafts_equal_those_of_transformers_on_random_ids(alphabet, max_ngram, num_tokens):
    rng = random.Random(alphabet)
    theirs = PromptLookupCandidateGenerator(torch.tensor([EOS]), num_tokens, max_ngram, max_length=10**6)
    ours = PromptLookup(num_tokens, max_ngram, rule="transformers")
    found = 0
    for _ in range(350):
        ids = [rng.randrange(alphabet) for _ in range(rng.randrange(2, 60))]
        ours.reset(choosing(len, alphabet, eos=(EOS,)), ids)
        expected = theirs.get_candidates(torch.tensor([ids]))[0][0, len(ids) :].tolist()
        assert drafted(ours, ids).tokens == expected
        found += bool(expected)
    assert found > 100


def test_text_and_passes_equal_those_of_transformers():
    network, prompt = tiny(vocab_size=11), [5, 3, 3, 1, 7, 5, 3]
    with mock.patch.object(type(network), "forward", autospec=True, side_effect=type(network).forward) as forward:
        theirs = network.generate(
            torch.tensor([prompt]), max_new_tokens=60, do_sample=False, prompt_lookup_num_tokens=4,
            max_matching_ngram_size=2,
        )[0].tolist()  # fmt: skip
    out = generate(network, prompt, PromptLookup(4, max_ngram=2, rule="transformers"), max_new_tokens=60)
    assert prompt + out.ids == theirs
    # theirs may merge the prefill with a first draft, and so save a pass
    assert len(out.stats) - forward.call_count in (0, 1) and len(out.stats) < 60
