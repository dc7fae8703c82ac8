"""A target asks itself what it can read: every kind of damage is found, rounding is none, and it asks but once."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from support.families import tiny_of
from support.kinds import model_of
from support.oracle import PROMPT, N, greedy_text_of
from support.proposers import Scripted, always_right, tree_with_decoys, with_side_tokens

from lessons_lib.decoding.draft_tree import plain_input
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.targets import TransformersTarget, Unsupported, self_check
from lessons_lib.decoding.targets.self_check import agree
from lessons_lib.models import tiny

WINDOW = 32


class Damaged(TransformersTarget):
    """Its forward reads an input after `damage` has changed it."""

    def __init__(self, damage, network=None):
        super().__init__(network or tiny())
        self.damage = damage

    def forward(self, given):
        return super().forward(self.damage(given))


def ignores_positions(given):
    """Every token stands one after the token before it, as where a model counts cache entries."""
    return replace(given, offsets=list(range(len(given.tokens))))


def ignores_the_mask(given):
    return replace(given, mask=None)


def sees_what_is_fed_first(given):
    """A mask that lets every token see the first of its input."""
    if given.mask is None:
        return given
    mask = given.mask.clone()
    mask[:, given.cache.length()] = True
    return replace(given, mask=mask)


def raises_for_a_mask(given):
    if given.mask is not None:
        raise RuntimeError("shapes do not fit")
    return given


def repeats_after_a_cache(given):
    """Several tokens after a cache are read as the first of them, again and again."""
    return replace(given, tokens=given.tokens[:1] * len(given.tokens)) if given.cache.length() else given


def reads_zero_for_a_lone_token(given):
    return replace(given, tokens=[0]) if given.cache.length() and len(given.tokens) == 1 else given


@pytest.mark.parametrize("damage", [ignores_positions, ignores_the_mask, sees_what_is_fed_first, raises_for_a_mask])
def test_a_target_that_misreads_branches_finds_out(damage):
    assert TransformersTarget(tiny()).self_check.reads_branches(20, 20)
    asked = Damaged(damage).self_check
    assert asked.reads_chains() and not asked.reads_branches(20, 20)


@pytest.mark.parametrize("vocab_size", [2, 3, 11])
def test_a_vocabulary_that_is_smaller_than_the_trees_tried_will_do(vocab_size):
    assert TransformersTarget(tiny(vocab_size=vocab_size)).self_check.reads_branches(20, 20)
    assert not Damaged(ignores_the_mask, tiny(vocab_size=vocab_size)).self_check.reads_branches(20, 20)


@pytest.mark.parametrize("damage", [repeats_after_a_cache, reads_zero_for_a_lone_token])
def test_a_target_that_misreads_chains_finds_out(damage):
    asked = Damaged(damage).self_check
    assert not asked.reads_chains() and not asked.reads_branches(20, 20)


def no_memory_on_a_cpu(*_):
    torch.empty(2**50, dtype=torch.uint8)


def test_a_check_without_memory_says_so_and_remembers_nothing():
    target = Damaged(no_memory_on_a_cpu)
    with pytest.raises(torch.OutOfMemoryError):
        target.self_check.reads_chains()
    target.damage = repeats_after_a_cache
    assert not target.self_check.reads_chains()


def test_without_memory_for_the_check_of_a_long_text_chains_are_fed_and_nothing_is_remembered(monkeypatch):
    network = tiny()
    text = greedy_text_of(network)
    with monkeypatch.context() as full, pytest.warns(UserWarning, match="goes on with chains: .*allocate memory"):
        full.setattr(self_check, "long_text_agrees", no_memory_on_a_cpu)
        out = generate(network, PROMPT, Scripted(text, 97, tree_with_decoys), max_new_tokens=N)
    assert PROMPT + out.ids == text and all(step.proposed == step.depth for step in out.stats)
    out = generate(network, PROMPT, Scripted(text, 97, tree_with_decoys), max_new_tokens=N)
    assert out.stats[1].proposed > out.stats[1].depth


def test_a_cache_with_gaps_that_keeps_the_wrong_entries_is_found_out():
    class Forgetful(TransformersTarget):
        def new_cache(self, tokens):
            cache = super().new_cache(tokens)
            keep = cache.keep
            cache.keep = lambda prefix, then=(): keep(prefix + len(then))
            return cache

    assert not Forgetful(tiny()).self_check.reads_branches(20, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference(dtype):
    assert TransformersTarget(tiny(dtype=dtype, layers=4)).self_check.reads_branches(64, 64)
    assert not Damaged(ignores_positions, tiny(dtype=dtype, layers=4)).self_check.reads_branches(64, 64)


def test_logits_agree_by_the_spread_of_their_row():
    logits = torch.tensor([[0.0, 1.0, 2.0, float("-inf")], [0.0, 100.0, 200.0, float("-inf")]])
    near, far = logits.clone(), logits.clone()
    near[1, 1] += 0.05
    far[0, 1] += 0.05
    assert agree(logits, logits) and agree(near, logits) and not agree(far, logits)
    assert not agree(logits.nan_to_num(neginf=0.0), logits) and not agree(logits * float("nan"), logits)
    assert not agree(logits[:1], logits)


@pytest.mark.parametrize("make, passes", [(always_right, 9), (tree_with_decoys, 19)], ids=["chains", "branches"])
def test_a_network_is_asked_once_in_all_its_texts_and_again_in_another_setting(make, passes):
    network, run = tiny(), []
    network.register_forward_hook(lambda *_: run.append(1))

    def asked():
        text = greedy_text_of(network)
        run.clear()
        out = generate(network, PROMPT, Scripted(text, 97, make), max_new_tokens=N)
        return len(run) - len(out.stats)

    generate(network, PROMPT, max_new_tokens=4)
    assert len(run) == 4  # plain decoding asks nothing
    assert [asked(), asked()] == [passes, 0]
    network.set_attn_implementation("eager")
    assert [asked(), asked()] == [passes, 0]
    network.float()
    assert [asked(), asked()] == [passes, 0]


def test_what_is_known_of_a_network_does_not_keep_it():
    network = tiny()
    assert TransformersTarget(network).self_check.reads_branches(20, 20)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [tree_with_decoys, with_side_tokens(tree_with_decoys)], ids=["tree", "side tokens"])
def test_a_text_that_grows_past_a_window_goes_on_with_chains(make):
    """It says so once, feeds branches while it can, and then chains; the text is the plain one."""
    network = tiny_of("mistral", window=WINDOW)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False)[0].tolist()
    with pytest.warns(UserWarning, match="goes on with chains") as said:
        out = generate(network, PROMPT, Scripted(text, 97, make), max_new_tokens=60)
    assert PROMPT + out.ids == text and len(said) == 1
    branched = [step.proposed > step.depth for step in out.stats[1:] if step.depth]
    assert branched[0] and branched == sorted(branched, reverse=True) and not branched[-1]
    late = [step for step in out.stats if step.length_before > WINDOW]
    assert late and all(step.num_input_tokens == 1 + step.proposed for step in late)  # no side tokens


def test_a_window_that_counts_other_branches_is_found_when_a_text_grows_past_it():
    """Mask and positions are obeyed in a short text: only the window's beginning moves."""
    network, prompt = model_of("a window by another name", window_size=48), [5, 9, 11, 7]
    plain = generate(network, prompt, max_new_tokens=70).ids
    with pytest.warns(UserWarning, match="goes on with chains"):
        out = generate(network, prompt, DraftModel(network, 2, children=(2,)), max_new_tokens=70)
    assert out.ids == plain and out.stats[1].proposed > out.stats[1].depth


def test_branches_are_fed_as_long_as_the_window_holds_all():
    network = tiny_of("mistral", window=WINDOW)
    asked = TransformersTarget(network).self_check
    assert [asked.reads_branches(entries, 200) for entries in (10, 17, 32, 33, 32)] == [True, True, True, False, True]
    assert (asked.known.good, asked.known.bad) == (32, 33)


@pytest.mark.parametrize("make", [lambda: tiny_of("mistral", window=8), lambda: model_of("convolutions and attention")])
def test_branches_that_a_model_misreads_do_not_end_a_text_that_began_with_chains(make):
    network, prompt = make(), [5, 9, 11, 7, 3]
    text = network.generate(torch.tensor([prompt]), max_new_tokens=N, do_sample=False)[0].tolist()
    script = lambda rest, *to: (always_right if len(rest) > N - 2 else tree_with_decoys)(rest, *to)  # noqa: E731
    with pytest.warns(UserWarning, match="goes on with chains") as said:
        out = generate(network, prompt, Scripted(text, network.config.vocab_size, script), max_new_tokens=N)
    assert prompt + out.ids == text and len(said) == 1
    assert all(step.proposed == step.depth for step in out.stats)


def test_a_text_that_begins_beyond_the_window_is_refused():
    network = tiny_of("mistral", window=8)
    with pytest.raises(Unsupported, match="at least in a text of 22 tokens; use a proposer of chains"):
        generate(network, PROMPT, Scripted(greedy_text_of(network), 97, tree_with_decoys), max_new_tokens=N)


def test_a_draft_whose_text_grows_past_its_window_goes_on_with_chains():
    network, draft = tiny(), tiny_of("mistral", window=WINDOW)
    by = DraftModel(draft, 3, "iid", (2, 1), generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="goes on with chains"):
        out = generate(network, PROMPT, by, max_new_tokens=40)
    assert out.ids == generate(network, PROMPT, max_new_tokens=40).ids
    branched = [step.length_before for step in out.stats if step.proposed > step.depth]
    assert branched and max(branched) < WINDOW < max(step.length_before for step in out.stats if step.depth)


def test_going_back_reads_the_whole_text_once_and_copies_from_then_on(monkeypatch):
    target = TransformersTarget(model_of("convolutions and attention"))
    ids = [5, 9, 11, 7, 3, 4, 8, 6]
    cache = target.new_cache(len(ids))
    assert target.self_check.reads_chains()
    passes, forward = [], target.forward
    monkeypatch.setattr(target, "forward", lambda given: passes.append(len(given.tokens)) or forward(given))
    target.run([plain_input(ids[:4], cache)])
    target.run([plain_input([1, 2], cache)])
    cache.keep(4)
    assert cache.length() == 4 and passes == [4, 2, 4]
    target.run([plain_input([*ids[4:6], 1, 2], cache)])
    cache.keep(6)
    assert cache.length() == 6 and passes[3:] == [4, 2]  # from a copy: the two kept tokens alone
    (found,) = target.run([plain_input(ids[6:], cache, 2)])
    fresh = target.run([plain_input(ids, target.new_cache(len(ids)), 2)])[0]
    torch.testing.assert_close(found.logits, fresh.logits, rtol=0, atol=1e-5)


def test_a_state_keeps_no_gaps_and_no_more_than_it_read():
    target = TransformersTarget(model_of("no cache"))
    cache = target.new_cache(8)
    target.run([plain_input([5, 9, 11], cache)])
    for prefix, then in ((1, [2]), (4, [])):
        with pytest.raises(ValueError, match="cannot be kept of 3"):
            cache.keep(prefix, then)
