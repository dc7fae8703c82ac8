"""Any causal LM decodes as transformers' own `generate`; what one does not compute correctly is refused."""

from functools import cache

import pytest
import torch
from support.kinds import SIZES, image_and_text_model, model_of
from support.oracle import PROMPT, N, greedy_text_of
from support.proposers import Scripted, TextLookahead, tree_with_decoys
from transformers import BartConfig, BartForCausalLM, BartForConditionalGeneration, LlamaModel

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.targets import TransformersTarget, Unsupported
from lessons_lib.decoding.targets.transformers import as_attention_mask, vocabulary
from lessons_lib.models import tiny

TEXT, NEW = [5, 9, 11, 7, 5, 9, 11, 8, 5, 9, 11, 7, 3, 4, 5, 9, 11], 20
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
    ids = torch.tensor([TEXT])
    return network_of(kind).generate(ids, max_new_tokens=NEW, do_sample=False)[0, len(TEXT) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_plain_text_is_that_of_transformers(kind):
    out = generate(network_of(kind), TEXT, max_new_tokens=NEW)
    assert out.ids == theirs(kind) and len(out.stats) == NEW


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ONE_AT_A_TIME])
def test_chains_keep_the_text(kind):
    """Its own draft is always right, prompt lookup now and then: whole chains are kept, and parts of them."""
    network = network_of(kind)
    drafted = generate(network, TEXT, DraftModel(network, gamma=4), max_new_tokens=NEW)
    assert drafted.ids == theirs(kind) and len(drafted.stats) == 1 + -(-(NEW - 1) // 5)
    assert generate(network, TEXT, PromptLookup(min_hit_rate=0), max_new_tokens=NEW).ids == theirs(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["tree", "lookahead"])
def test_branches_keep_the_text_or_are_refused(kind, by):
    network = network_of(kind)
    proposer = DraftModel(network, 3, children=(3, 2)) if by == "tree" else TextLookahead(4, 4, 4)
    if kind in READS_BRANCHES:
        assert generate(network, TEXT, proposer, max_new_tokens=NEW).ids == theirs(kind)
    else:
        with pytest.raises(Unsupported, match="does not read branches and side tokens as it reads plain text"):
            generate(network, TEXT, proposer, max_new_tokens=NEW)


def test_a_draft_that_reads_no_branches_is_refused_as_a_tree_and_serves_as_a_chain():
    target, draft = tiny(vocab_size=61), network_of("ALiBi")
    with pytest.raises(Unsupported, match="MptForCausalLM does not read branches"):
        generate(target, TEXT, DraftModel(draft, 3, children=(2,)), max_new_tokens=NEW)
    plain = generate(target, TEXT, max_new_tokens=NEW)
    assert generate(target, TEXT, DraftModel(draft, 3), max_new_tokens=NEW).ids == plain.ids


@pytest.mark.parametrize("kind", ["recurrent, state under another name", "no cache", "convolutions and attention"])
def test_a_draft_without_keys_and_values_keeps_the_text(kind):
    target = tiny(vocab_size=61)
    plain = generate(target, TEXT, max_new_tokens=NEW)
    assert generate(target, TEXT, DraftModel(network_of(kind), 3), max_new_tokens=NEW).ids == plain.ids


def test_a_model_that_reads_one_token_at_a_time_is_refused_drafts_and_as_a_draft():
    network, target = network_of("recurrent"), tiny(vocab_size=61)
    with pytest.raises(Unsupported, match=REFUSED):
        generate(network, TEXT, DraftModel(target, 3), max_new_tokens=NEW)
    with pytest.raises(Unsupported, match=REFUSED):
        generate(target, TEXT, DraftModel(network, 3), max_new_tokens=NEW)


def test_a_model_that_reads_later_tokens_too_decodes_plainly_and_is_refused_drafts():
    """Logits of one pass over several tokens are not those of one pass for each."""
    network = model_of("positions after a padding id", is_decoder=False)
    expected = network.generate(torch.tensor([TEXT]), max_new_tokens=NEW, do_sample=False)[0, len(TEXT) :].tolist()
    assert generate(network, TEXT, max_new_tokens=NEW).ids == expected
    with pytest.raises(Unsupported, match=REFUSED):
        generate(network, TEXT, PromptLookup(min_hit_rate=0), max_new_tokens=NEW)


def test_a_context_by_another_name_or_in_the_config_of_the_text_part_bounds_the_text():
    with pytest.raises(ValueError, match="do not fit the context of 40"):
        generate(model_of("ALiBi", max_seq_len=40), [5, 9, 11, 7] * 5, max_new_tokens=22)
    with pytest.raises(ValueError, match="do not fit the context of 64"):
        generate(network_of(IMAGES), TEXT, max_new_tokens=49)


@pytest.mark.parametrize("eos, known", [(-1, ()), ([-1], ()), (97, ()), ([96, 97], (96,)), ([0, -1], (0,)), (3, (3,))])
def test_ends_that_the_model_has_no_logits_for_are_left_out(eos, known):
    network = tiny()
    network.generation_config.eos_token_id = eos
    assert TransformersTarget(network).eos == known
    out = generate(network, PROMPT, max_new_tokens=N, min_new_tokens=N // 2)
    options = dict(max_new_tokens=N, min_new_tokens=N // 2, do_sample=False, pad_token_id=0)
    assert PROMPT + out.ids == network.generate(torch.tensor([PROMPT]), **options)[0].tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_tree_is_verified_under_either_attention(attention):
    network = tiny()
    network.set_attn_implementation(attention)
    text = greedy_text_of(network)
    assert PROMPT + generate(network, PROMPT, Scripted(text, 97, tree_with_decoys), max_new_tokens=N).ids == text


def test_another_attention_cannot_verify_trees():
    with pytest.raises(Unsupported, match='need attn_implementation "sdpa" or "eager", not \'flash_attention_2\''):
        as_attention_mask(torch.ones(1, 1, dtype=torch.bool), "flash_attention_2", torch.float32)


def test_more_than_there_is_cannot_be_kept():
    with pytest.raises(ValueError, match="1 entries cannot be kept of 0"):
        TransformersTarget(tiny()).new_cache(1).keep(1)


def test_a_model_with_an_encoder_is_refused_and_its_decoder_alone_is_not():
    config = BartConfig(
        vocab_size=61, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
    )  # fmt: skip
    with pytest.raises(Unsupported, match="BartForConditionalGeneration has an encoder, which this does not run"):
        generate(BartForConditionalGeneration(config), PROMPT, max_new_tokens=N)
    assert TransformersTarget(BartForCausalLM(config)).context == 64


def test_the_vocabulary_is_that_of_the_head_and_without_a_head_that_of_the_config():
    """Heads are often padded: they have more rows than the config has tokens."""
    network = tiny()
    tokens = network.config.vocab_size
    network.lm_head = torch.nn.Linear(network.config.hidden_size, tokens + 31, bias=False)
    assert vocabulary(network) == tokens + 31
    assert vocabulary(LlamaModel(network.config)) == tokens
