"""Models of every kind decode as transformers' own `generate`; what one cannot read is refused, never wrong."""

from functools import cache

import pytest
import torch
from support.kinds import SIZES, image_and_text_model, model_of

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.proposers.lookahead import Lookahead
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.targets import Unsupported
from lessons_lib.models import tiny

PROMPT, N = [5, 9, 11, 7, 5, 9, 11, 8, 5, 9, 11, 7, 3, 4, 5, 9, 11], 20
READS_BRANCHES = {"positions in a table", "positions after a padding id"}
ONE_AT_A_TIME = {"recurrent"}  # transformers' Mamba forgets its state when it is given several tokens
IMAGES = "a window in the config of the text part"
KINDS = [*SIZES, IMAGES]
REFUSED = "reads several tokens at once differently from one at a time"


@cache
def network_of(kind: str):
    return image_and_text_model(window=8) if kind == IMAGES else model_of(kind)


@cache
def theirs(kind: str) -> list[int]:
    ids = torch.tensor([PROMPT])
    return network_of(kind).generate(ids, max_new_tokens=N, do_sample=False)[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_plain_text_is_that_of_transformers(kind):
    out = generate(network_of(kind), PROMPT, max_new_tokens=N)
    assert out.ids == theirs(kind) and len(out.stats) == N


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ONE_AT_A_TIME])
def test_chains_keep_the_text(kind):
    """Its own draft is always right, prompt lookup now and then: whole chains are kept, and parts of them."""
    network = network_of(kind)
    drafted = generate(network, PROMPT, DraftModel(network, gamma=4), max_new_tokens=N)
    assert drafted.ids == theirs(kind) and len(drafted.stats) == 1 + -(-(N - 1) // 5)
    assert generate(network, PROMPT, PromptLookup(min_hit_rate=0), max_new_tokens=N).ids == theirs(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["tree", "lookahead"])
def test_branches_keep_the_text_or_are_refused(kind, by):
    network = network_of(kind)
    proposer = DraftModel(network, 3, children=(3, 2)) if by == "tree" else Lookahead(4, 4, 4, pool_from_text=True)
    if kind in READS_BRANCHES:
        assert generate(network, PROMPT, proposer, max_new_tokens=N).ids == theirs(kind)
    else:
        with pytest.raises(Unsupported, match="does not read branches and side tokens as it reads plain text"):
            generate(network, PROMPT, proposer, max_new_tokens=N)


def test_a_draft_that_reads_no_branches_is_refused_as_a_tree_and_serves_as_a_chain():
    target, draft = tiny(vocab_size=61), network_of("ALiBi")
    with pytest.raises(Unsupported, match="MptForCausalLM does not read branches"):
        generate(target, PROMPT, DraftModel(draft, 3, children=(2,)), max_new_tokens=N)
    plain = generate(target, PROMPT, max_new_tokens=N)
    assert generate(target, PROMPT, DraftModel(draft, 3), max_new_tokens=N).ids == plain.ids


@pytest.mark.parametrize("kind", ["recurrent, state under another name", "no cache", "convolutions and attention"])
def test_a_draft_without_keys_and_values_keeps_the_text(kind):
    target = tiny(vocab_size=61)
    plain = generate(target, PROMPT, max_new_tokens=N)
    assert generate(target, PROMPT, DraftModel(network_of(kind), 3), max_new_tokens=N).ids == plain.ids


def test_a_model_that_reads_one_token_at_a_time_is_refused_drafts_and_as_a_draft():
    network, target = network_of("recurrent"), tiny(vocab_size=61)
    with pytest.raises(Unsupported, match=REFUSED):
        generate(network, PROMPT, DraftModel(target, 3), max_new_tokens=N)
    with pytest.raises(Unsupported, match=REFUSED):
        generate(target, PROMPT, DraftModel(network, 3), max_new_tokens=N)


def test_a_model_that_reads_later_tokens_too_decodes_plainly_and_is_refused_drafts():
    """Logits of one pass over several tokens are not those of one pass for each."""
    network = model_of("positions after a padding id", is_decoder=False)
    expected = network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0, len(PROMPT) :].tolist()
    assert generate(network, PROMPT, max_new_tokens=N).ids == expected
    with pytest.raises(Unsupported, match=REFUSED):
        generate(network, PROMPT, PromptLookup(min_hit_rate=0), max_new_tokens=N)


@pytest.mark.parametrize("new", [22, 30])
def test_a_context_by_another_name_bounds_the_text(new):
    with pytest.raises(ValueError, match=f"20 tokens and {new} new ones do not fit the context of 40"):
        generate(model_of("ALiBi", max_seq_len=40), [5, 9, 11, 7] * 5, max_new_tokens=new)


def test_a_context_in_the_config_of_the_text_part_bounds_the_text():
    with pytest.raises(ValueError, match="do not fit the context of 64"):
        generate(network_of(IMAGES), PROMPT, max_new_tokens=49)
