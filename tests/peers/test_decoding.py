"""The real model: our decoder and our loop against transformers, in float32."""

import pytest
import torch
from support.proposers import Scripted, always_right

from lessons_lib import generate
from lessons_lib.decoding.probing import logits_along

TEXT = "The lighthouse keeper climbed 217 steps, counted the ships, and wrote in the log:"


def test_logits_of_the_readable_decoder_equal_those_of_transformers(smollm2):
    ids = smollm2.tokenizer(TEXT).input_ids
    with torch.no_grad():
        expected = smollm2.network(torch.tensor([ids])).logits[0]
    found = logits_along(smollm2.target("decoder"), ids, len(ids))
    assert (found - expected).abs().max() < 2e-4


@pytest.mark.parametrize("kind", ["decoder", "transformers"])
def test_greedy_text_equals_that_of_transformers(smollm2, kind):
    ids = smollm2.tokenizer(TEXT, return_tensors="pt")
    expected = smollm2.network.generate(**ids, max_new_tokens=40, do_sample=False)[0, ids.input_ids.shape[1] :].tolist()
    out = generate(smollm2.target(kind), TEXT, max_new_tokens=40)
    assert out.ids == expected
    assert out.text == smollm2.tokenizer.decode(expected, skip_special_tokens=True)


def test_messages_get_the_chat_template_and_end_by_themselves(smollm2):
    messages = [{"role": "user", "content": "Answer with one word: what is the capital of France?"}]
    prompt = smollm2.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    expected = smollm2.network.generate(**prompt, max_new_tokens=40, do_sample=False)
    out = generate(smollm2, messages, max_new_tokens=40)
    assert out.ids == expected[0, prompt.input_ids.shape[1] :].tolist()
    assert out.finish == "eos" and "Paris" in out.text


def test_a_stop_text_ends_the_output_whoever_proposes(smollm2):
    target = smollm2.target()
    plain = generate(target, TEXT, max_new_tokens=40)
    word = plain.text.split()[5]
    stopped = generate(target, TEXT, max_new_tokens=40, stop=word)
    assert stopped.finish == "stop"
    assert stopped.text == plain.text[: plain.text.index(word)]
    full = target.tokenizer(TEXT).input_ids + plain.ids
    proposer = Scripted(full, target.vocab_size, always_right)
    assert generate(target, TEXT, proposer, max_new_tokens=40, stop=word).ids == stopped.ids
