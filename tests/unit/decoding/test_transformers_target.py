"""What is transformers' own behind our interface: masks, caches, logits, ends, and forwards that differ."""

import pytest
import torch
from support.oracle import PROMPT, N, greedy_text_of
from support.proposers import Scripted, always_right, tree_with_decoys
from transformers import BartConfig, BartForCausalLM, BartForConditionalGeneration, LlamaForCausalLM

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import TransformersTarget, Unsupported
from lessons_lib.decoding.targets.transformers import as_attention_mask
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


def test_more_than_there_is_cannot_be_kept():
    with pytest.raises(ValueError, match="1 entries cannot be kept of 0"):
        TransformersTarget(tiny()).new_cache(1).keep(1)


def a_llama(forward) -> LlamaForCausalLM:
    """A Llama with the weights of `tiny()` whose class has another forward, as models from elsewhere have."""
    known = tiny()
    network = type("Custom", (LlamaForCausalLM,), {"forward": forward})(known.config).double()
    network.load_state_dict(known.state_dict())
    network.generation_config.eos_token_id = None
    return network


def swallows_others(self, input_ids=None, past_key_values=None, use_cache=None, position_ids=None, **others):
    return LlamaForCausalLM.forward(
        self, input_ids, past_key_values=past_key_values, use_cache=use_cache, position_ids=position_ids
    )


def takes_no_others(self, input_ids=None, past_key_values=None, use_cache=None, position_ids=None):
    return swallows_others(self, input_ids, past_key_values, use_cache, position_ids)


def says_and_forgets(
    self, input_ids=None, past_key_values=None, use_cache=None, position_ids=None, logits_to_keep=0, **others
):
    return swallows_others(self, input_ids, past_key_values, use_cache, position_ids)


@pytest.mark.parametrize("forward", [swallows_others, takes_no_others, says_and_forgets])
def test_logits_of_the_last_tokens_are_read_whatever_a_forward_does_with_logits_to_keep(forward):
    network, text = a_llama(forward), greedy_text_of(tiny())
    assert PROMPT + generate(network, PROMPT, max_new_tokens=N).ids == text
    assert PROMPT + generate(network, PROMPT, Scripted(text, 97, always_right), max_new_tokens=N).ids == text


def test_a_model_with_an_encoder_is_refused_and_its_decoder_alone_is_not():
    config = BartConfig(
        vocab_size=61, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
    )  # fmt: skip
    with pytest.raises(Unsupported, match="BartForConditionalGeneration has an encoder, which this does not run"):
        generate(BartForConditionalGeneration(config), PROMPT, max_new_tokens=N)
    assert TransformersTarget(BartForCausalLM(config)).context == 64


def test_a_model_without_a_language_model_head_is_refused():
    with pytest.raises(Unsupported, match="LlamaModel gives no logits .*; load it with AutoModelForCausalLM"):
        generate(tiny().model, PROMPT, max_new_tokens=N)


@pytest.mark.parametrize("eos, known", [(-1, ()), ([-1], ()), (97, ()), ([96, 97], (96,)), ([0, -1], (0,)), (3, (3,))])
def test_ends_that_the_model_has_no_logits_for_are_left_out(eos, known):
    network = tiny()
    network.generation_config.eos_token_id = eos
    assert TransformersTarget(network).eos == known
    out = generate(network, PROMPT, max_new_tokens=N, min_new_tokens=N // 2)
    options = dict(max_new_tokens=N, min_new_tokens=N // 2, do_sample=False, pad_token_id=0)
    assert PROMPT + out.ids == network.generate(torch.tensor([PROMPT]), **options)[0].tolist()
