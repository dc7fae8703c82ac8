"""The loop: same tokens as plain greedy decoding whatever is proposed, and an end where the text must end."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import proposers as scripts
from support.oracle import exact
from support.proposers import SCRIPTS, Scripted, with_scratch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons_lib.caches.contiguous import ContiguousCache
from lessons_lib.caches.static import StaticCache
from lessons_lib.decoding.acceptance import Greedy
from lessons_lib.decoding.generate import generate, new_row
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.row import step
from lessons_lib.decoding.streaming import TextStream
from lessons_lib.decoding.targets import DecoderTarget, TransformersTarget, Unsupported, as_target
from lessons_lib.decoding.trace import compression, tokens_per_forward
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder, Segment

PROMPT, N = [5, 80, 3, 3, 61], 24


def decoder_target(network, eos=()):
    return DecoderTarget(Decoder.from_transformers(network), eos=eos)


TARGETS = [pytest.param(TransformersTarget, id="transformers"), pytest.param(decoder_target, id="decoder")]


@pytest.fixture(scope="module")
def network():
    return tiny()


@pytest.fixture(scope="module")
def greedy(network) -> list[int]:
    """transformers' own greedy text, prompt included."""
    return network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0].tolist()


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """One token a word, none for spaces: "w5" -> [5]."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("scratch", [False, True], ids=["", "scratch"])
@pytest.mark.parametrize("make", SCRIPTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_same_tokens_as_greedy_whatever_the_proposer(network, greedy, target, make, scratch):
    proposer = Scripted(greedy, 97, with_scratch(make) if scratch else make)
    out = generate(target(network), PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy[len(PROMPT) :]
    assert sum(s.committed for s in out.trace) == N
    assert compression(out.trace) * len(out.trace) == pytest.approx(N)


@pytest.mark.parametrize("make, forwards", [
    (scripts.silent, N),
    (scripts.always_wrong, N),
    (scripts.always_right, 1 + math.ceil((N - 1) / 5)),
    (scripts.tree_with_decoys, 1 + math.ceil((N - 1) / 5)),
    (scripts.right_until_third, 1 + math.ceil((N - 1) / 3)),
])  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_target_forwards_are_as_few_as_the_guesses_allow(network, greedy, target, make, forwards):
    out = generate(target(network), PROMPT, Scripted(greedy, 97, make), max_new_tokens=N)
    assert len(out.trace) == forwards
    assert tokens_per_forward(out.trace) == pytest.approx((N - 1) / (forwards - 1))


@pytest.mark.parametrize("family", ["gpt_neox", "opt", "gemma", "mistral"])
@pytest.mark.parametrize("make", [scripts.right_until_third, with_scratch(scripts.tree_with_decoys)])
def test_any_family_of_transformers_decodes_chains_and_trees(family, make):
    network = tiny(family=family)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0].tolist()
    out = generate(network, PROMPT, Scripted(text, 97, make), max_new_tokens=N)
    assert out.ids == text[len(PROMPT) :]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    prompt=st.lists(st.integers(0, 96), min_size=1, max_size=9),
    count=st.integers(1, 20),
    make=st.sampled_from(SCRIPTS),
    scratch=st.booleans(),
)
def test_greedy_text_is_kept_for_random_models_prompts_and_proposers(seed, prompt, count, make, scratch):
    network = tiny(seed=seed % 5)
    plain = generate(decoder_target(network), prompt, max_new_tokens=count).ids
    proposer = Scripted(prompt + plain, 97, with_scratch(make) if scratch else make, seed=seed)
    assert generate(decoder_target(network), prompt, proposer, max_new_tokens=count).ids == plain


@pytest.mark.parametrize("make", SCRIPTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_after_every_step_the_cache_is_that_of_the_committed_text(network, greedy, target, make):
    target = target(network)
    row = new_row(target, PROMPT, Scripted(greedy, 97, with_scratch(make)), Greedy(), N)
    while row.finish is None:
        with exact():
            step(target, [row])
        assert row.cache.length() == len(row.ids) - 1
        for found, expected in zip(entries(row.cache), fresh_entries(network, row.ids[:-1]), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def entries(cache) -> list[torch.Tensor]:
    if isinstance(cache, ContiguousCache):
        return [keys[:, : cache.length()] for keys in cache.keys]
    return [layer.keys[0] for layer in cache.inner.layers]


def fresh_entries(network, ids) -> list[torch.Tensor]:
    decoder = Decoder.from_transformers(network)
    c = decoder.config
    cache = ContiguousCache(c.layers, c.kv_heads, c.head_dim, torch.float64)
    with torch.no_grad():
        decoder(torch.tensor(ids), [Segment(torch.arange(len(ids)), cache)])
    return entries(cache)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("at", range(0, 9))
def test_nothing_is_committed_after_the_end_token(network, greedy, target, at):
    """The end token as the first token, inside a guess, as the bonus."""
    new = greedy[len(PROMPT) :]
    eos = new[at]
    target = target(network)
    target.eos = (eos,)
    out = generate(target, PROMPT, Scripted(greedy, 97, scripts.always_right), max_new_tokens=N)
    assert out.ids == new[: new.index(eos) + 1]
    assert out.finish == "eos"


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_nothing_is_committed_beyond_the_length(network, greedy, count):
    out = generate(network, PROMPT, Scripted(greedy, 97, scripts.always_right), max_new_tokens=count)
    assert out.ids == greedy[len(PROMPT) :][:count]
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


def test_tokens_stream_in_order_as_they_are_committed(network, greedy):
    bursts = []
    generate(network, PROMPT, Scripted(greedy, 97, scripts.always_right), max_new_tokens=N, on_tokens=bursts.append)
    assert [token for burst in bursts for token in burst] == greedy[len(PROMPT) :]
    assert len(bursts[0]) == 1 and len(bursts[1]) == 5


def test_rows_of_one_step_decode_as_if_alone(network):
    """Three prompts of unequal length, one fed in chunks, with different proposers, in packed forwards."""
    prompts = [[5, 80, 3], [61, 17, 42, 9, 9, 9, 1], [7]]
    texts = [network.generate(torch.tensor([p]), max_new_tokens=N, do_sample=False)[0].tolist() for p in prompts]
    target = decoder_target(network)
    makes = [scripts.tree_with_decoys, scripts.random_chain, with_scratch(scripts.right_until_third)]
    rows = [new_row(target, p, Scripted(t, 97, m), Greedy(), N) for p, t, m in zip(prompts, texts, makes, strict=True)]
    rows[1].chunk = 3
    while unfinished := [row for row in rows if row.finish is None]:
        step(target, unfinished)
    assert [row.ids for row in rows] == texts
    assert [s.committed for s in rows[1].trace[:3]] == [0, 0, 1]  # 7 prompt tokens in chunks of 3
    assert all(s.is_prefill for s in rows[1].trace[:3])


def test_the_proposer_sees_its_own_nodes_again(network, greedy):
    """Merged and cut nodes are translated back; the states are those of the last accepted node, then scratch."""
    by = Scripted(greedy, 97, with_scratch(scripts.tree_with_decoys))
    by.after = (1, "final")
    generate(decoder_target(network), PROMPT, by, max_new_tokens=N)
    prefill, seen = by.seen[0], by.seen[1]
    assert prefill.path == [] and len(prefill.tokens) == 1
    assert seen.path == [1, 6, 11, 16] and len(seen.tokens) == 5
    assert seen.tokens[-1] == seen.node_logits[16].argmax()
    assert seen.node_logits[1].equal(seen.node_logits[3])  # equal siblings are one node
    assert seen.scratch_logits.shape == (3, 97)
    assert seen.states["final"].shape == seen.states[1].shape == (4, 32)
    head = network.lm_head.weight
    torch.testing.assert_close(seen.states["final"][0] @ head.T, seen.node_logits[16], rtol=0, atol=1e-12)


def test_scratch_does_not_change_the_logits_of_the_tree(network, greedy):
    def logits(make):
        by = Scripted(greedy, 97, make)
        generate(decoder_target(network), PROMPT, by, max_new_tokens=6)
        return by.seen[1].node_logits

    plain, beside = logits(scripts.tree_with_decoys), logits(with_scratch(scripts.tree_with_decoys))
    for node in plain:
        torch.testing.assert_close(plain[node], beside[node], rtol=0, atol=1e-12)


def test_states_of_both_targets_agree(network, greedy):
    def states(target):
        by = Scripted(greedy, 97, scripts.always_right)
        by.after = (1, "final")
        generate(target(network), PROMPT, by, max_new_tokens=8)
        return by.seen[1].states

    ours, theirs = states(decoder_target), states(TransformersTarget)
    for name in (1, "final"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)  # theirs has float32 norms


@pytest.mark.parametrize("bad, said", [
    (dict(prompt=[]), "the prompt is empty"),
    (dict(prompt=[1, 97]), "token id 97 is not in this model's vocabulary of 97"),
    (dict(max_new_tokens=0), "max_new_tokens must be at least 1"),
    (dict(max_new_tokens=-3), "max_new_tokens must be at least 1"),
    (dict(min_new_tokens=9, max_new_tokens=4), "min_new_tokens between 0 and it"),
    (dict(prompt=[1] * 300), "do not fit the context of 256"),
    (dict(prompt=[1] * 200, max_new_tokens=58), "do not fit the context of 256"),
])  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_bad_input_is_one_clear_sentence(network, target, bad, said):
    with pytest.raises(ValueError, match=said):
        generate(target(network), **dict(prompt=PROMPT) | bad)


@pytest.mark.parametrize("make", [scripts.tree_with_decoys, with_scratch(scripts.tree_with_decoys)])
@pytest.mark.parametrize("target", TARGETS)
def test_guesses_at_the_end_of_the_context_are_cut_to_what_fits(target, make):
    network = tiny(context=24)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)[0].tolist()
    out = generate(target(network), PROMPT, Scripted(text, 97, make), max_new_tokens=20)
    assert PROMPT + out.ids == text


def test_guesses_that_a_static_cache_cannot_hold_are_dropped(network, greedy):
    class Tight(DecoderTarget):
        def new_cache(self, tokens):
            c = self.decoder.config
            return StaticCache(c.layers, c.kv_heads, c.head_dim, torch.float64, capacity=tokens + 2)

    target = Tight(Decoder.from_transformers(network))
    out = generate(target, PROMPT, Scripted(greedy, 97, scripts.tree_with_decoys), max_new_tokens=N)
    assert PROMPT + out.ids == greedy


def test_a_text_may_fill_the_context_to_the_last_position(network):
    out = generate(decoder_target(network), [1] * 250, max_new_tokens=7)
    assert len(out.ids) == 7


def test_text_without_a_tokenizer_is_refused(network):
    with pytest.raises(TypeError, match="no tokenizer"):
        generate(network, "hello")
    with pytest.raises(TypeError, match="need a tokenizer"):
        generate(network, PROMPT, stop="x")


@pytest.mark.parametrize("prompt", ["", "   ", [], torch.tensor([], dtype=torch.long)], ids=repr)
@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_prompt_is_refused_as_text_too(network, words, target, prompt):
    target = target(network)
    target.tokenizer = words
    assert len(generate(target, "w5", max_new_tokens=2).ids) == 2
    with pytest.raises(ValueError, match="the prompt is empty; give at least one token"):
        generate(target, prompt, max_new_tokens=2)


def test_a_proposer_whose_needs_are_not_offered_is_refused(network):
    class Demanding(Proposer):
        needs = frozenset({"rows"})

    with pytest.raises(Unsupported, match="Demanding needs rows, which TransformersTarget does not offer"):
        generate(network, PROMPT, Demanding())


def test_what_cannot_decode_is_refused():
    with pytest.raises(TypeError, match="str cannot decode"):
        as_target("smollm2-135m")


@pytest.mark.parametrize("stop", [None, "{word}"], ids=["", "stop text"])
def test_a_stream_has_shown_the_text_of_the_output_when_generate_returns(network, greedy, words, stop):
    target, written = DecoderTarget(Decoder.from_transformers(network), words), []
    stop = stop and f"w{greedy[len(PROMPT) + 6]}"
    stream = TextStream(words, written.append, stop)
    proposer = Scripted(greedy, 97, scripts.always_right)
    out = generate(target, PROMPT, proposer, max_new_tokens=N, stop=stop, on_tokens=stream)
    assert "".join(written) == out.text and len(written) > 1
    assert out.finish == ("stop" if stop else "length")
