"""Our decoder as a target: logits of transformers, and tokens that enter at a later layer. See also test_seams.py."""

import torch
from support.oracle import PROMPT

from lessons_lib.decoding import DecoderTarget
from lessons_lib.decoding.draft_tree import ModelInput, plain_input
from lessons_lib.models import Decoder

EXACT = dict(rtol=0, atol=1e-12)
OTHER = [7, 7, 3, 9, 61, 2, 8]


def target_of(network) -> DecoderTarget:
    return DecoderTarget(Decoder.from_transformers(network))


def read(target, tokens, wanted=None, **more):
    """The output for one text alone, in a new cache."""
    filled = plain_input(tokens, target.new_cache(16), len(tokens) if wanted is None else wanted)
    for name, value in more.items():
        setattr(filled, name, value)
    return target.run([filled])[0]


def test_logits_are_those_of_transformers(network):
    found = read(target_of(network), PROMPT).logits
    torch.testing.assert_close(found, network(torch.tensor([PROMPT])).logits[0], rtol=0, atol=1e-5)


def test_only_the_wanted_tokens_get_logits_and_states(network):
    target = target_of(network)
    whole, last = (read(target, PROMPT, wanted, after=(1, "final")) for wanted in (len(PROMPT), 2))
    assert last.logits.shape == (2, 97)
    torch.testing.assert_close(last.logits, whole.logits[-2:], **EXACT)
    for name in (1, "final"):
        torch.testing.assert_close(last.states[name], whole.states[name][-2:], **EXACT)
    torch.testing.assert_close(target.decoder.score(whole.states["final"]), whole.logits, **EXACT)


def test_tokens_that_enter_at_a_later_layer_join_a_pass_and_every_output_keeps_its_place(network):
    """The first layer ran before, on its own cache; the second gets its states, beside a text that runs both."""
    target = target_of(network)
    states = read(target, PROMPT, after=(1,)).states[1]
    late = ModelInput(PROMPT, list(range(len(PROMPT))), None, target.new_cache(16), len(PROMPT))
    late.first_layer, late.states = 1, states
    other = plain_input(OTHER, target.new_cache(16), 1)
    entered, whole = target.run([late, other])
    torch.testing.assert_close(entered.logits, read(target, PROMPT).logits, **EXACT)
    torch.testing.assert_close(whole.logits, read(target, OTHER, 1).logits, **EXACT)


def test_a_second_pass_goes_on_where_the_first_one_ended(network):
    target, cache = target_of(network), target_of(network).new_cache(16)
    target.run([plain_input(PROMPT[:2], cache)])
    rest = target.run([plain_input(PROMPT[2:], cache, 3)])[0]
    torch.testing.assert_close(rest.logits, read(target, PROMPT, 3).logits, **EXACT)
    assert cache.length() == len(PROMPT)
