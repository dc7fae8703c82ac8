"""A target asks itself what it can read: every kind of damage is found, rounding is none, and it asks but once."""

import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from support.kinds import model_of
from support.oracle import PROMPT, N, greedy_text_of
from support.proposers import Scripted, tree_with_decoys, with_scratch
from support.targets import entries

from lessons_lib.decoding.acceptance import Sampling
from lessons_lib.decoding.blocks import plain_block
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.targets import TransformersTarget, Unsupported
from lessons_lib.decoding.targets.self_check import agree
from lessons_lib.models import tiny

WINDOW = 32


class Damaged(TransformersTarget):
    """Its forward reads a block after `damage` has changed it."""

    def __init__(self, damage, network=None):
        super().__init__(network or tiny())
        self.damage = damage

    def forward(self, block):
        return super().forward(self.damage(block))


def ignores_positions(block):
    """Every token stands one behind the token before it, as where a model counts cache entries."""
    return replace(block, offsets=list(range(len(block.tokens))))


def ignores_the_mask(block):
    return replace(block, mask=None)


def sees_what_is_fed_first(block):
    """A mask that lets every token see the first of its block."""
    if block.mask is None:
        return block
    mask = block.mask.clone()
    mask[:, block.cache.length()] = True
    return replace(block, mask=mask)


def raises_for_a_mask(block):
    if block.mask is not None:
        raise RuntimeError("shapes do not fit")
    return block


def repeats_behind_a_cache(block):
    """Several tokens behind a cache are read as the first of them, again and again."""
    return replace(block, tokens=block.tokens[:1] * len(block.tokens)) if block.cache.length() else block


@pytest.mark.parametrize("damage", [ignores_positions, ignores_the_mask, sees_what_is_fed_first, raises_for_a_mask])
def test_a_target_that_misreads_branches_finds_out(damage):
    assert TransformersTarget(tiny()).check_itself.reads_branches(20, 20)
    asked = Damaged(damage).check_itself
    assert asked.reads_chains() and not asked.reads_branches(20, 20)


@pytest.mark.parametrize("vocab_size", [2, 3, 11])
def test_a_vocabulary_that_is_smaller_than_the_trees_tried_will_do(vocab_size):
    network = tiny(vocab_size=vocab_size)
    assert TransformersTarget(network).check_itself.reads_branches(20, 20)
    assert not Damaged(ignores_the_mask, network).check_itself.reads_branches(20, 20)


def test_a_target_that_misreads_chains_finds_out():
    asked = Damaged(repeats_behind_a_cache).check_itself
    assert not asked.reads_chains() and not asked.reads_branches(20, 20)


def test_a_model_out_of_memory_says_so():
    def full(block):
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        Damaged(full).check_itself.reads_chains()


def test_a_cache_with_gaps_that_keeps_the_wrong_entries_is_found_out():
    class Forgetful(TransformersTarget):
        def new_cache(self, tokens):
            cache = super().new_cache(tokens)
            keep = cache.keep
            cache.keep = lambda prefix, then=(): keep(prefix + len(then))
            return cache

    assert not Forgetful(tiny()).check_itself.reads_branches(20, 20)


def test_a_target_without_positions_reads_no_branches():
    """Positions that no one passes on are counted by the model, from entries."""
    network = tiny()
    forward = network.forward
    network.forward = lambda input_ids, attention_mask=None, past_key_values=None, use_cache=None: forward(
        input_ids, attention_mask=attention_mask, past_key_values=past_key_values, use_cache=use_cache
    )
    asked = TransformersTarget(network).check_itself
    assert asked.reads_chains() and not asked.reads_branches(20, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference(dtype):
    assert TransformersTarget(tiny(dtype=dtype, layers=4)).check_itself.reads_branches(64, 64)
    assert not Damaged(ignores_positions, tiny(dtype=dtype, layers=4)).check_itself.reads_branches(64, 64)


def test_logits_agree_by_the_spread_of_their_row():
    logits = torch.tensor([[0.0, 1.0, 2.0, float("-inf")], [0.0, 100.0, 200.0, float("-inf")]])
    near, far = logits.clone(), logits.clone()
    near[1, 1] += 0.05
    far[0, 1] += 0.05
    assert agree(logits, logits) and agree(near, logits) and not agree(far, logits)
    assert not agree(logits.nan_to_num(neginf=0.0), logits) and not agree(logits * float("nan"), logits)
    assert not agree(logits[:1], logits)


@contextmanager
def counted(target):
    """Lengths of the passes that the target runs within it."""
    lengths, forward = [], target.forward

    def count(block):
        lengths.append(len(block.tokens))
        return forward(block)

    target.forward = count
    yield lengths
    target.forward = forward


def test_a_target_asks_itself_once_and_plain_decoding_never():
    network = tiny()
    target, text = TransformersTarget(network), greedy_text_of(network)
    with counted(target) as plain:
        steps = len(generate(target, PROMPT, max_new_tokens=N).trace)
    assert len(plain) == steps
    asked = []
    for _ in range(2):
        with counted(target) as passes:
            out = generate(target, PROMPT, Scripted(text, 97, tree_with_decoys), max_new_tokens=N)
        asked.append(len(passes) - len(out.trace))
    assert asked == [15, 0]  # 5 for chains, 7 for branches, 3 for the length


def test_asking_leaves_no_trace_in_a_text():
    target = TransformersTarget(tiny())
    cache = target.new_cache(N)
    target.run([plain_block(PROMPT, cache)])
    before = [tensor.clone() for tensor in entries(cache)]
    assert target.reads_branches(cache, 20)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(entries(cache), before, strict=True))


@pytest.mark.parametrize("make", [tree_with_decoys, with_scratch(tree_with_decoys)], ids=["tree", "side tokens"])
def test_a_text_that_grows_past_a_window_goes_on_with_chains(make):
    """It says so once, feeds branches while it can, and then chains; the text is the plain one."""
    network = tiny(family="mistral", window=WINDOW)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False)[0].tolist()
    with pytest.warns(UserWarning, match="goes on with chains") as said:
        out = generate(network, PROMPT, Scripted(text, 97, make), max_new_tokens=60)
    assert PROMPT + out.ids == text and len(said) == 1
    branched = [step.proposed > step.depth for step in out.trace[1:] if step.depth]
    assert branched[0] and branched == sorted(branched, reverse=True) and not branched[-1]
    assert all(not step.scratch for step in out.trace if step.length_before > WINDOW)


def test_a_window_that_counts_other_branches_is_found_when_a_text_grows_past_it():
    """Mask and positions are obeyed in a short text: only the window's beginning moves."""
    network, prompt = model_of("a window by another name", window_size=48), [5, 9, 11, 7]
    plain = generate(network, prompt, max_new_tokens=70).ids
    with pytest.warns(UserWarning, match="goes on with chains"):
        out = generate(network, prompt, DraftModel(network, 2, children=(2,)), max_new_tokens=70)
    assert out.ids == plain and out.trace[1].proposed > out.trace[1].depth


def test_branches_are_fed_as_long_as_the_window_holds_all():
    network = tiny(family="mistral", window=WINDOW)
    asked = TransformersTarget(network).check_itself
    assert [asked.reads_branches(entries, 200) for entries in (10, 17, 32, 33, 32)] == [True, True, True, False, True]


def test_a_text_that_begins_beyond_the_window_is_refused():
    network = tiny(family="mistral", window=8)
    with pytest.raises(Unsupported, match="at least in a text of 22 tokens; use a proposer of chains"):
        generate(network, PROMPT, Scripted(greedy_text_of(network), 97, tree_with_decoys), max_new_tokens=N)


@pytest.mark.parametrize("mode", ["point", "iid", "without_replacement"])
def test_a_draft_whose_text_grows_past_its_window_goes_on_with_chains(mode):
    network, draft = tiny(), tiny(family="mistral", window=WINDOW)
    sampling = None if mode == "point" else Sampling()
    by = DraftModel(draft, 3, mode, (2, 1), sampling, torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="goes on with chains"):
        out = generate(network, PROMPT, by, max_new_tokens=40)
    assert out.ids == generate(network, PROMPT, max_new_tokens=40).ids
    branched = [step.length_before for step in out.trace if step.proposed > step.depth]
    assert branched and max(branched) < WINDOW < max(step.length_before for step in out.trace if step.depth)


def test_no_warning_where_nothing_changes():
    network = tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(network, PROMPT, Scripted(greedy_text_of(network), 97, tree_with_decoys), max_new_tokens=N)


def test_going_back_reads_the_whole_text_once_and_copies_from_then_on():
    target = TransformersTarget(model_of("convolutions and attention"))
    ids = [5, 9, 11, 7, 3, 4, 8, 6]
    cache = target.new_cache(len(ids))
    assert target.check_itself.reads_chains()
    with counted(target) as passes:
        target.run([plain_block(ids[:4], cache)])
        target.run([plain_block([1, 2], cache)])
        cache.keep(4)
        assert cache.length() == 4 and passes == [4, 2, 4]
        target.run([plain_block([*ids[4:6], 1, 2], cache)])
        cache.keep(6)
        assert cache.length() == 6 and passes[3:] == [4, 2]
        (found,) = target.run([plain_block(ids[6:], cache, 2)])
    fresh = target.run([plain_block(ids, target.new_cache(len(ids)), 2)])[0]
    torch.testing.assert_close(found.logits, fresh.logits, rtol=0, atol=1e-5)


def test_a_state_keeps_no_gaps_and_no_more_than_it_read():
    target = TransformersTarget(model_of("no cache"))
    cache = target.new_cache(8)
    target.run([plain_block([5, 9, 11], cache)])
    for prefix, then in ((1, [2]), (4, [])):
        with pytest.raises(ValueError, match="cannot be kept of 3"):
            cache.keep(prefix, then)
