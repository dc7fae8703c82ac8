"""The loop: same tokens as plain greedy decoding whatever is proposed, and an end where the text must end."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import proposers as scripts
from support.examples import examples
from support.oracle import PROMPT, N, exact
from support.proposers import SCRIPTS, Scripted, with_side_tokens
from support.targets import UNEQUAL, assert_holds, decoder_target, targets, together
from support.toys import choosing

from lessons_lib.decoding.generate import compression, generate, new_sequence, step, tokens_per_pass
from lessons_lib.decoding.sampling import Greedy
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.models import tiny


@pytest.mark.parametrize("side", [False, True], ids=["", "side tokens"])
@pytest.mark.parametrize("make", SCRIPTS, ids=lambda make: make.__name__)
@targets
def test_same_tokens_as_greedy_whatever_the_proposer(network, greedy_text, target, make, side):
    proposer = Scripted(greedy_text, 97, with_side_tokens(make) if side else make)
    out = generate(target(network), PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy_text[len(PROMPT) :]
    assert sum(s.committed for s in out.stats) == N
    assert compression(out.stats) * len(out.stats) == pytest.approx(N)


@pytest.mark.parametrize("make, passes", [
    (scripts.silent, N),
    (scripts.always_wrong, N),
    (scripts.always_right, 1 + math.ceil((N - 1) / 5)),
    (scripts.tree_with_decoys, 1 + math.ceil((N - 1) / 5)),
    (scripts.right_until_third, 1 + math.ceil((N - 1) / 3)),
])  # fmt: skip
@targets
def test_target_forwards_are_as_few_as_the_guesses_allow(network, greedy_text, target, make, passes):
    out = generate(target(network), PROMPT, Scripted(greedy_text, 97, make), max_new_tokens=N)
    assert len(out.stats) == passes
    assert tokens_per_pass(out.stats) == pytest.approx((N - 1) / (passes - 1))


@pytest.mark.parametrize("family", ["gpt_neox", "opt", "gemma", "mistral"])
@pytest.mark.parametrize("make", [scripts.right_until_third, with_side_tokens(scripts.tree_with_decoys)])
def test_any_family_of_transformers_decodes_chains_and_trees(family, make):
    network = tiny(family=family)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0].tolist()
    out = generate(network, PROMPT, Scripted(text, 97, make), max_new_tokens=N)
    assert out.ids == text[len(PROMPT) :]


@examples(40)
@given(
    seed=st.integers(0, 10**6),
    prompt=st.lists(st.integers(0, 96), min_size=1, max_size=9),
    count=st.integers(1, 20),
    make=st.sampled_from(SCRIPTS),
    side=st.booleans(),
)
def test_greedy_text_is_kept_for_random_models_prompts_and_proposers(seed, prompt, count, make, side):
    network = tiny(seed=seed % 5)
    plain = generate(decoder_target(network), prompt, max_new_tokens=count).ids
    proposer = Scripted(prompt + plain, 97, with_side_tokens(make) if side else make, seed=seed)
    assert generate(decoder_target(network), prompt, proposer, max_new_tokens=count).ids == plain


@pytest.mark.parametrize("make", SCRIPTS, ids=lambda make: make.__name__)
@targets
def test_after_every_step_the_cache_is_that_of_the_committed_text(network, greedy_text, target, make):
    target = target(network)
    row = new_sequence(target, PROMPT, Scripted(greedy_text, 97, with_side_tokens(make)), Greedy(), N)
    while row.finish_reason is None:
        with exact():
            step(target, [row])
        assert row.cache.length() == len(row.ids) - 1
        assert_holds(row.cache, row.ids[:-1], decoder_target(network))


@targets
@pytest.mark.parametrize("at", range(0, 9))
def test_nothing_is_committed_after_the_end_token(network, greedy_text, target, at):
    """The end token as the first token, inside a guess, as the bonus."""
    new = greedy_text[len(PROMPT) :]
    eos = new[at]
    target = target(network)
    target.eos = (eos,)
    out = generate(target, PROMPT, Scripted(greedy_text, 97, scripts.always_right), max_new_tokens=N)
    assert out.ids == new[: new.index(eos) + 1]
    assert out.finish == "eos"


@targets
@torch.no_grad()
def test_an_end_token_among_accepted_guesses_leaves_the_cache_of_the_text(network, greedy_text, target):
    new, target = greedy_text[len(PROMPT) :], target(network)
    target.eos = (new[3],)
    row = new_sequence(target, PROMPT, Scripted(greedy_text, 97, scripts.always_right), Greedy(), N)
    while row.finish_reason is None:
        step(target, [row])
    assert row.output_ids == new[:4] and row.stats[-1].accepted == 3
    assert_holds(row.cache, row.ids[:-1], target)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_nothing_is_committed_beyond_the_length(network, greedy_text, count):
    out = generate(network, PROMPT, Scripted(greedy_text, 97, scripts.always_right), max_new_tokens=count)
    assert out.ids == greedy_text[len(PROMPT) :][:count]
    assert out.finish == "length"


@pytest.mark.parametrize("least", [0, 1, 3, 7])
@pytest.mark.parametrize("make", [scripts.silent, scripts.always_right])
def test_no_end_before_the_minimum_length_as_in_transformers(network, least, make):
    eos = network.generate(torch.tensor([PROMPT]), max_new_tokens=3, do_sample=False)[0, -1].item()
    options = dict(max_new_tokens=N, min_new_tokens=least, do_sample=False, eos_token_id=eos, pad_token_id=0)
    text = network.generate(torch.tensor([PROMPT]), **options)[0].tolist()
    target = decoder_target(network, eos=(eos,))
    padded = text + [0] * N  # the script must not run dry
    out = generate(target, PROMPT, Scripted(padded, 97, make), max_new_tokens=N, min_new_tokens=least)
    assert out.ids == text[len(PROMPT) :]


@pytest.mark.parametrize("make", [scripts.silent, scripts.always_right])
def test_the_minimum_length_may_be_reached_within_a_step(make):
    """A target that would end at once, and says 0 while it may not; its proposer sees what it would have said."""
    target, by = choosing(lambda prefix: 3, 5, eos=(3,)), Scripted([2, 0, 0, 0, 3, *[0] * 9], 5, make)
    out = generate(target, [2], by, max_new_tokens=9, min_new_tokens=3)
    assert (out.ids, out.finish) == ([0, 0, 0, 3], "eos")
    said = [logits.argmax() for seen in by.seen for logits in seen.scores.logits[1:]]
    assert said == [3] * len(said) and bool(said) == (make is scripts.always_right)


def test_tokens_stream_in_order_as_they_are_committed(network, greedy_text):
    bursts = []
    generate(
        network, PROMPT, Scripted(greedy_text, 97, scripts.always_right), max_new_tokens=N, on_tokens=bursts.append
    )
    assert [token for burst in bursts for token in burst] == greedy_text[len(PROMPT) :]
    assert len(bursts[0]) == 1 and len(bursts[1]) == 5


def test_rows_of_one_step_decode_as_if_alone(network):
    """Three prompts of unequal length, one fed in chunks, with different proposers, in packed forwards."""
    texts = [network.generate(torch.tensor([p]), max_new_tokens=N, do_sample=False)[0].tolist() for p in UNEQUAL]
    makes = [scripts.tree_with_decoys, scripts.random_chain, with_side_tokens(scripts.right_until_third)]
    proposers = [Scripted(text, 97, make) for text, make in zip(texts, makes, strict=True)]
    rows = together(decoder_target(network), proposers)
    assert [row.ids for row in rows] == texts
    assert [s.committed for s in rows[1].stats[:3]] == [0, 0, 1]  # 7 prompt tokens in chunks of 3
    assert all(s.is_prefill for s in rows[1].stats[:3])
    assert all(seen.tokens for seen in rows[1].proposer.seen)  # told of commits alone


@pytest.mark.parametrize("make, most", [
    (scripts.always_right, 3),  # a chain is cut
    (with_side_tokens(scripts.silent), 1),  # side tokens are fed together or not at all
    (scripts.tree_with_decoys, 3),  # a wide tree is cut, too
])  # fmt: skip
def test_a_chunk_bounds_what_a_step_feeds_guesses_included(network, greedy_text, make, most):
    target = decoder_target(network)
    row = new_sequence(target, PROMPT, Scripted(greedy_text, 97, make), Greedy(), N)
    row.num_scheduled_tokens = 3
    while row.finish_reason is None:
        step(target, [row])
    assert row.ids == greedy_text
    assert max(s.num_input_tokens for s in row.stats if not s.is_prefill) == most


def test_the_proposer_sees_its_tree_again_with_path_logits_and_hidden_states(network, greedy_text):
    by = Scripted(greedy_text, 97, with_side_tokens(scripts.tree_with_decoys))
    by.after = (1, "final")
    generate(decoder_target(network), PROMPT, by, max_new_tokens=N)
    prefill, seen = by.seen[0], by.seen[1]
    assert prefill.path == prefill.tree.tokens == [] and len(prefill.tokens) == 1
    assert [seen.tree.tokens[node] for node in seen.path] == seen.tokens[:-1] and len(seen.tokens) == 5
    assert seen.path == seen.tree.path(seen.path[-1]) != [0, 1, 2, 3]
    rows = 1 + len(seen.tree.tokens) + 3  # the root, the nodes, side tokens
    last = seen.scores.logits[1 + seen.path[-1]]
    assert seen.tokens[-1] == last.argmax() and seen.scores.logits.shape == (rows, 97)
    assert seen.scores.states["final"].shape == seen.scores.states[1].shape == (rows, 32)
    head = network.lm_head.weight
    torch.testing.assert_close(seen.scores.states["final"] @ head.T, seen.scores.logits, rtol=0, atol=1e-12)


def test_side_tokens_do_not_change_the_logits_of_the_tree(network, greedy_text):
    def logits(make):
        by = Scripted(greedy_text, 97, make)
        generate(decoder_target(network), PROMPT, by, max_new_tokens=6)
        return by.seen[1].scores.logits

    plain, beside = logits(scripts.tree_with_decoys), logits(with_side_tokens(scripts.tree_with_decoys))
    assert len(beside) == len(plain) + 3
    torch.testing.assert_close(plain, beside[:-3], rtol=0, atol=1e-12)


class InOnePass(Scripted):
    """Drafts for all texts of a step at once, and notes how many."""

    calls: list[int] = []

    @staticmethod
    def propose_batch(proposers, texts, trees):
        InOnePass.calls.append(len(proposers))
        for by, ids, tree in zip(proposers, texts, trees, strict=True):
            by.propose(ids, tree)


def test_proposers_of_one_kind_propose_for_their_texts_together(network):
    texts = [network.generate(torch.tensor([p]), max_new_tokens=N, do_sample=False)[0].tolist() for p in UNEQUAL]
    kinds = [InOnePass, Scripted, InOnePass]
    proposers = [kind(text, 97, scripts.always_right) for kind, text in zip(kinds, texts, strict=True)]
    InOnePass.calls.clear()
    assert [row.ids for row in together(decoder_target(network), proposers)] == texts
    assert InOnePass.calls[0] == 2 and set(InOnePass.calls) <= {1, 2}


def test_states_of_both_targets_agree(network, greedy_text):
    def states(target):
        by = Scripted(greedy_text, 97, scripts.always_right)
        by.after = (1, "final")
        generate(target(network), PROMPT, by, max_new_tokens=8)
        return by.seen[1].scores.states

    ours, theirs = states(decoder_target), states(TransformersTarget)
    for name in (1, "final"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)  # theirs has float32 norms


def test_the_parts_of_a_steps_time_make_up_the_whole():
    for s in generate(decoder_target(tiny()), PROMPT, max_new_tokens=4).stats:
        parts = s.t_propose, s.t_pass, s.t_accept, s.t_commit
        assert min(parts) > 0 and sum(parts) == pytest.approx(s.t_total)
