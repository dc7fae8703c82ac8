"""A step that can be repeated, and the distance of a text from a target's own choices."""

import pytest
import torch

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.probing import repeatable_step, shortfall
from lessons_lib.decoding.targets import DecoderTarget, TransformersTarget
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder

PROMPT = [5, 80, 3, 3, 61]
TARGETS = [TransformersTarget, lambda network: DecoderTarget(Decoder.from_transformers(network))]


@pytest.mark.parametrize("make", TARGETS)
def test_a_repeated_step_finds_the_cache_as_the_first_one_did(make):
    target, seen = make(tiny()), []
    run = target.run

    def spy(blocks):
        (scores,) = run(blocks)
        seen.append((blocks[0].cache.length(), scores.logits))
        return [scores]

    target.run = spy
    step = repeatable_step(target, PROMPT, tokens=2)
    for _ in range(3):
        step()
    assert [length for length, _ in seen] == [5, 7, 7, 7]
    for _, logits in seen[2:]:
        torch.testing.assert_close(logits, seen[1][1])


@pytest.mark.parametrize("make", TARGETS)
def test_a_targets_own_greedy_text_falls_short_nowhere_and_another_token_does(make):
    target = make(tiny())
    new = generate(target, PROMPT, max_new_tokens=8).ids
    assert shortfall(target, PROMPT, new).tolist() == [0] * 8
    new[-1] = (new[-1] + 1) % 97
    short = shortfall(target, PROMPT, new)
    assert short[-1] > 0 and not short[:-1].any()


@pytest.mark.parametrize("make", TARGETS)
def test_a_token_that_was_held_back_is_nobodys_favourite(make):
    target = make(tiny())
    free = generate(target, PROMPT, max_new_tokens=8).ids
    target.eos = (free[3],)
    new = generate(target, PROMPT, max_new_tokens=8, min_new_tokens=8).ids
    assert new[:3] == free[:3] and free[3] not in new
    assert shortfall(target, PROMPT, new, target.eos).tolist() == [0] * 8
    assert shortfall(target, PROMPT, new)[3] > 0
