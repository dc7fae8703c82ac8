"""What is transformers' own behind our interface: the forms of a mask, and caches that cannot do everything."""

import pytest
import torch
from support.oracle import PROMPT, N, greedy_text_of
from support.proposers import Scripted, tree_with_decoys

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import Unsupported
from lessons_lib.decoding.targets.transformers import TransformersCache, as_attention_mask
from lessons_lib.models import tiny


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_tree_is_verified_under_either_attention(attention):
    network = tiny()
    network.set_attn_implementation(attention)
    text = greedy_text_of(network)
    assert PROMPT + generate(network, PROMPT, Scripted(text, 97, tree_with_decoys), max_new_tokens=N).ids == text


def test_another_attention_cannot_verify_trees():
    with pytest.raises(Unsupported, match='need attn_implementation "sdpa" or "eager", not \'flash_attention_2\''):
        as_attention_mask(torch.ones(1, 1, dtype=torch.bool), "flash_attention_2", torch.float32)


def test_trees_are_refused_beyond_a_sliding_window():
    network = tiny(family="mistral", window=8)
    proposer = Scripted(greedy_text_of(network), 97, tree_with_decoys)
    with pytest.raises(Unsupported, match="beyond the sliding window of 8 tokens"):
        generate(network, PROMPT, proposer, max_new_tokens=N)


def test_more_than_there_is_cannot_be_kept():
    with pytest.raises(ValueError, match="1 entries cannot be kept of 0"):
        TransformersCache().keep(1)
