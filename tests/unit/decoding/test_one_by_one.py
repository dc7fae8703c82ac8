"""A target fed token by token says what it says of the block, in more runs; what it cannot take apart it leaves."""

import pytest
import torch
from lessons_lib.decoding.targets.compiled import SHORT, one_by_one
from support.targets import decoder_target, targets

from lessons_lib.decoding.draft_tree import ModelInput, plain_input
from lessons_lib.models import tiny

PROMPT = [5, 80, 3, 3, 61, 7]


@pytest.fixture
def watched():
    """watched(target) -> (fed one by one, lengths of the blocks that the inner target was given)."""

    def make(target):
        fed, run = [], target.run
        target.run = lambda blocks: fed.extend(len(block.tokens) for block in blocks) or run(blocks)
        return one_by_one(target), fed

    return make


@targets
def test_a_short_block_says_the_same_in_runs_of_one_token(target, watched):
    target = target(tiny())
    plain, apart = target.new_cache(9), target.new_cache(9)
    expected = [target.run([plain_input(tokens, plain)])[0].logits for tokens in (PROMPT, [9, 4, 1])]
    other, fed = watched(target)
    found = [other.run([plain_input(tokens, apart)])[0].logits for tokens in (PROMPT, [9, 4, 1])]
    assert fed == [len(PROMPT), 1, 1, 1] and apart.length() == plain.length() == 9
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@targets
def test_what_asks_for_more_than_the_last_token_runs_as_it_is(target, watched):
    other, fed = watched(target(tiny()))
    cache = other.new_cache(20)
    (scores,) = other.run([plain_input([9, 4], cache, 2)])
    assert scores.logits.shape[0] == 2 and fed == [2]
    other.run([ModelInput([1, 2], [0, 0], torch.ones(2, 4, dtype=torch.bool).tril(2), cache, 1)])
    other.run([plain_input([1] * (SHORT + 1), cache)])
    assert fed == [2, 2, SHORT + 1]


def test_states_are_those_of_the_last_token(watched):
    target = decoder_target(tiny())
    cache, alike = target.new_cache(2), target.new_cache(2)
    block = plain_input([9, 4], cache)
    block.after = ("final",)
    other, _ = watched(target)
    found = other.run([block])[0].states["final"]
    whole = plain_input([9, 4], alike, 2)
    whole.after = ("final",)
    torch.testing.assert_close(found, other.run([whole])[0].states["final"][-1:])
