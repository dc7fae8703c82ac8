"""Assisted decoding: the target's own text, the passes that drafts save, the draft's cache, and bad settings."""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.distributions import seeded
from support.drafts import perturbed
from support.examples import examples
from support.oracle import PROMPT, N
from support.targets import TARGETS, Tight, assert_holds, decoder_target, targets
from support.toys import ToyTarget, constant

from lessons_lib import DraftModel, Greedy, Sampling, generate
from lessons_lib.decoding.generate import new_sequence, step
from lessons_lib.decoding.proposers.draft_length import Adaptive, Confidence, Constant
from lessons_lib.models import tiny

SHAPES = [
    pytest.param(dict(), id="chain"),
    pytest.param(dict(children=(3, 2)), id="top-k tree"),
    pytest.param(dict(mode="iid"), id="sampled chain"),
    pytest.param(dict(mode="iid", children=(3, 2)), id="sampled tree"),
    pytest.param(dict(mode="without_replacement", children=(2, 1, 2)), id="tree without replacement"),
]


# the same tokens as plain greedy decoding


@pytest.mark.parametrize("shape", SHAPES)
@targets
@pytest.mark.parametrize("draft", TARGETS)
def test_greedy_text_is_kept_with_any_target_as_draft(network, greedy, target, draft, shape):
    proposer = DraftModel(draft(perturbed(network, 0.03)), 4, generator=seeded(0), **shape)
    out = generate(target(network), PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy
    assert 0 < sum(s.accepted for s in out.stats) < sum(s.depth for s in out.stats)  # both outcomes took place


@functools.cache
def models(seed: int, noise: float):
    network = tiny(seed=seed)
    return decoder_target(network), decoder_target(perturbed(network, noise))


@examples(30)
@given(
    seed=st.integers(0, 3),
    noise=st.sampled_from([0.0, 0.02, 0.05, 0.2]),
    prompt=st.lists(st.integers(0, 96), min_size=1, max_size=9),
    gamma=st.integers(1, 6),
    count=st.integers(1, 20),
    children=st.lists(st.integers(1, 3), max_size=2),
    mode=st.sampled_from(["unsampled", "iid", "without_replacement"]),
)
def test_greedy_text_is_kept_for_random_prompts_drafts_and_shapes(seed, noise, prompt, gamma, count, children, mode):
    target, draft = models(seed, noise)
    plain = generate(target, prompt, max_new_tokens=count).ids
    proposer = DraftModel(draft, gamma, mode, children, generator=seeded(seed))
    out = generate(target, prompt, proposer, max_new_tokens=count)
    assert out.ids == plain
    assert all(1 <= s.committed <= s.depth + 1 and s.depth <= gamma for s in out.stats)


# how many forward passes


@pytest.mark.parametrize("gamma", [1, 2, 4, 7])
@targets
def test_a_draft_equal_to_the_target_is_always_right(network, greedy, target, gamma):
    target = target(network)
    for count in {1, 2, gamma, gamma + 1, gamma + 2, N}:
        out = generate(target, PROMPT, DraftModel(target, gamma), max_new_tokens=count)
        assert out.ids == greedy[:count]
        assert len(out.stats) == 1 + math.ceil((count - 1) / (gamma + 1))
        left = [count - sum(s.committed for s in out.stats[:i]) for i in range(1, len(out.stats))]
        assert [s.draft_calls for s in out.stats] == [0] + [min(gamma, most - 1) for most in left]


def test_sampling_from_the_target_itself_is_always_right_too(network):
    target = decoder_target(network)
    proposer = DraftModel(target, 4, "iid", sampling=Sampling(0.8, top_p=0.9), generator=seeded(1))
    out = generate(target, PROMPT, proposer, Sampling(0.8, top_p=0.9), 41, generator=seeded(2))
    assert len(out.stats) == 1 + 40 / 5


def test_a_tree_needs_fewer_passes_than_its_first_branch(network):
    chain, tree = (
        generate(network, PROMPT, DraftModel(perturbed(network, 0.05), 3, children=c), max_new_tokens=60).stats
        for c in [(), (3, 2)]
    )
    assert len(tree) < len(chain)
    assert {(s.proposed, s.draft_calls) for s in tree if s.depth == 3} == {(3 + 6 + 6, 3)}


# the draft's cache


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TARGETS)
def test_after_every_step_the_drafts_cache_is_that_of_the_committed_text(network, kind, shape, noise):
    draft, target = kind(perturbed(network, noise)), decoder_target(network)
    proposer = DraftModel(draft, 3, generator=seeded(4), **shape)
    seq = new_sequence(target, PROMPT, proposer, Greedy(), N)
    with torch.no_grad():
        while seq.finish_reason is None:
            before = len(seq.ids)
            step(target, [seq])
            done, cache = seq.stats[-1], proposer.cache
            if done.depth:  # what was accepted, less the deepest level, which was never fed
                assert cache.length() == before + min(done.accepted, done.depth - 1)
            if cache.length():
                assert_holds(cache, seq.ids[: cache.length()], draft)


# where texts end


def test_nothing_is_drafted_after_an_end_token(network, greedy):
    eos = greedy[2]
    assert greedy.index(eos) == 2
    out = generate(decoder_target(network, eos=(eos,)), PROMPT, DraftModel(network, 10), max_new_tokens=N)
    assert [s.proposed for s in out.stats] == [s.draft_calls for s in out.stats] == [0, 2]


def test_a_draft_of_smaller_context_stops_drafting_in_time(network, greedy):
    short = decoder_target(tiny(context=16))
    out = generate(network, PROMPT, DraftModel(short, 4), max_new_tokens=N)
    assert out.ids == greedy
    assert all(s.length_before + s.draft_calls <= 17 for s in out.stats if s.draft_calls)
    assert sum(s.accepted for s in out.stats) == 9  # entries 0 to 15 predict tokens up to the seventeenth


@pytest.mark.parametrize("shape", [dict(), dict(children=(4, 2))], ids=["chain", "tree"])
def test_a_draft_with_a_static_cache_drafts_as_deep_as_it_can_hold(network, greedy, shape):
    draft = Tight(network, 22)
    draft.context = 22
    out = generate(network, PROMPT, DraftModel(draft, 4, **shape), max_new_tokens=N)
    assert out.ids == greedy
    assert sum(s.accepted for s in out.stats) > 8


# schedules


class Longer(Constant):
    """Two tokens more than were accepted last time."""

    def observe(self, depth, checked, accepted):
        self.gamma = accepted + 2


def test_the_schedule_learns_what_became_of_its_draft(network, greedy):
    out = generate(network, PROMPT, DraftModel(network, Longer(1)), max_new_tokens=N)
    assert [s.depth for s in out.stats] == [0, 1, 3, 5, 7, 2]  # the budget caps the last
    wrong = DraftModel(tiny(seed=7), Adaptive(0.2, lambda width: 1 + 0.1 * width))
    out = generate(network, PROMPT, wrong, max_new_tokens=60)
    assert out.ids[:N] == greedy
    assert out.stats[1].depth > 0 and sum(s.depth == 0 for s in out.stats[20:]) > 30


def test_an_end_inside_the_draft_counts_as_accepted(network, greedy):
    schedule, seen = Constant(4), []
    schedule.observe = lambda *counts: seen.append(counts)
    target = decoder_target(network, eos=(greedy[3],))
    generate(target, PROMPT, DraftModel(network, schedule), max_new_tokens=N)
    assert seen == [(3, 3, 3)]


def test_low_confidence_stops_after_the_doubtful_token():
    sure, doubtful = [0.97, 0.02, 0.01], [0.4, 0.3, 0.3]
    draft = ToyTarget(lambda prefix: torch.tensor(doubtful if len(prefix) == 4 else sure).log(), 3)
    out = generate(constant(sure), [0], DraftModel(draft, Confidence(8, 0.5)), max_new_tokens=20)
    assert [s.depth for s in out.stats[:3]] == [0, 3, 8]  # two tokens are sure, the third is not, and verified


@pytest.mark.parametrize("make, error, said", [
    (lambda network: DraftModel(network, mode="best"), ValueError, "mode 'best' is unknown"),
    (lambda network: DraftModel(network, 0), ValueError, "gamma must be at least 1, not 0"),
    (lambda network: DraftModel(network, children=(2, 0)), ValueError, "at least 1 at every depth"),
    (lambda network: DraftModel(network, sampling=Sampling()), ValueError, "samples nothing"),
    (lambda network: DraftModel(network, 2.5), TypeError, "gamma must be an integer"),
    (lambda network: DraftModel(network, children=(2.0,)), TypeError, "children must be an integer"),
    (lambda network: DraftModel("smollm2-135m"), TypeError, "str cannot decode"),
])  # fmt: skip
def test_impossible_settings_are_refused(network, make, error, said):
    with pytest.raises(error, match=said):
        make(network)
