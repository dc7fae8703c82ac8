"""What lessons run beside ours: transformers' assisted generation, with a set number of draft tokens, and counted."""

import pytest
from support.drafts import perturbed
from support.oracle import exact
from support.targets import decoder_target
from transformers.utils import logging

from lessons_lib import DraftModel, EarlyExit, generate
from lessons_lib.decoding.peers import assist, by_early_exit, by_transformers, static_and_compiled
from lessons_lib.decoding.proposers.draft_length import Confidence
from lessons_lib.models import tiny

START, N = [5, 80, 3, 3], 24


@pytest.mark.parametrize("gamma", [1, 4])
def test_it_drafts_as_long_as_it_was_asked_to_and_takes_our_steps(gamma):
    """transformers verifies its first draft together with the prompt; begun one token earlier, ours does so, too."""
    network = tiny()
    draft = perturbed(network, 0.05)
    assist(draft, gamma)
    first = generate(network, START, max_new_tokens=1).ids
    passes = []
    network.register_forward_pre_hook(lambda module, given: passes.append(1))
    text = by_transformers(network, START + first, N, draft)
    counted = len(passes)
    ours = generate(network, START, DraftModel(draft, gamma), max_new_tokens=N + 1)
    assert ours.ids == first + text == first + by_transformers(network, START + first, N)
    assert counted == len(ours.stats) - 1


def test_the_text_is_greedy_whatever_repetition_penalty_the_model_comes_with():
    """A penalty below 1 makes transformers repeat the prompt's tokens."""
    network, prompt = tiny(), list(range(10))
    ours = generate(network, prompt, max_new_tokens=20).ids
    network.generation_config.update(repetition_penalty=0.001)
    assert by_transformers(network, prompt, 20) == ours


def test_a_static_cache_and_a_compiled_step_are_asked_for_in_transformers_words():
    options = static_and_compiled(64)
    assert (options["cache_implementation"], options["max_cache_len"]) == ("static", 64)
    assert options["compile_config"].mode is None and options["compile_config"]._compile_all_devices


@pytest.mark.parametrize("exit_layer, gamma", [(1, 4), (3, 1), (3, 4)])
def test_its_early_exit_takes_our_steps_with_a_draft_pass_for_each_draft_token(exit_layer, gamma):
    network = tiny(4)
    target = decoder_target(network)
    first = generate(target, START, max_new_tokens=1).ids
    with exact():
        theirs = by_early_exit(network, START + first, N, exit_layer, gamma)
    ours = generate(target, START, EarlyExit(exit_layer, gamma), max_new_tokens=N + 1)
    assert first + theirs.ids == ours.ids
    assert theirs.passes == len(ours.stats) - 1
    assert theirs.draft_passes == sum(step.draft_calls for step in ours.stats)


def test_an_early_exit_by_default_stops_after_a_token_it_doubts():
    network = tiny(4)
    plain = by_transformers(network, START, N)
    theirs = by_early_exit(network, START, N, 3)
    assert theirs.ids == plain
    ours = generate(decoder_target(network), START, EarlyExit(3, Confidence(20, 0.4)), max_new_tokens=N)
    assert abs(theirs.draft_passes - sum(step.draft_calls for step in ours.stats)) <= 3  # theirs drafts a step earlier


def test_the_settings_of_an_early_exit_are_gone_afterwards():
    network = tiny(4)
    network.generation_config.num_assistant_tokens = 7
    before = network.generation_config.to_dict()
    by_early_exit(network, START, 4, 2, 3)
    assert network.generation_config.to_dict() == before and network.config.num_hidden_layers == 4
    assert not network._forward_pre_hooks


def test_transformers_warnings_are_back_afterwards(caplog):
    level = logging.get_verbosity()
    network = tiny()
    draft = perturbed(network, 0.05)
    assist(draft, 3)
    by_transformers(network, START, 4, draft)
    assert logging.get_verbosity() == level
