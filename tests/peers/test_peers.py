"""What lessons run beside ours: transformers' assisted generation, with a set number of draft tokens, and counted."""

import pytest
from support.drafts import perturbed
from transformers.utils import logging

from lessons_lib import DraftModel, generate
from lessons_lib.decoding.peers import assist, by_transformers, count_passes
from lessons_lib.models import tiny

START, N = [5, 80, 3, 3], 24


@pytest.mark.parametrize("gamma", [1, 4])
def test_it_drafts_as_long_as_it_was_asked_to_and_takes_our_steps(gamma):
    """transformers verifies its first draft together with the prompt; begun one token earlier, ours does so, too."""
    network = tiny()
    draft = perturbed(network, 0.05)
    assist(draft, gamma)
    first = generate(network, START, max_new_tokens=1).ids
    text, passes = count_passes(network, START + first, N, draft)
    ours = generate(network, START, DraftModel(draft, gamma), max_new_tokens=N + 1)
    assert ours.ids == first + text == first + by_transformers(network, START + first, N)
    assert passes == len(ours.stats) - 1


def test_without_a_draft_each_token_takes_a_pass():
    assert count_passes(tiny(), START, 7)[1] == 7


def test_the_hook_goes_even_if_generate_fails():
    network = tiny()
    with pytest.raises(ValueError):
        count_passes(network, START, 0)
    assert not network._forward_pre_hooks


def test_transformers_warnings_are_back_afterwards(caplog):
    level = logging.get_verbosity()
    network = tiny()
    draft = perturbed(network, 0.05)
    assist(draft, 3)
    by_transformers(network, START, 4, draft)
    assert logging.get_verbosity() == level
