"""The loop: greedy tokens whatever is proposed, an end where the text must end, and what its arguments may be."""

import math

import numpy as np
import pytest
import torch
from support import proposers as scripts
from support.oracle import PROMPT, N
from support.proposers import SCRIPTS, Scripted, with_side_tokens
from support.small_tokenizers import byte_level
from support.targets import UNEQUAL, assert_holds, decoder_target, targets, together
from support.toys import choosing
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerFast

from lessons_lib import PromptLookup, Sampling
from lessons_lib.decoding.generate import generate, new_sequence, step, tokens_per_pass
from lessons_lib.decoding.sampling import Greedy
from lessons_lib.decoding.targets import DecoderTarget, TransformersTarget
from lessons_lib.decoding.text import TextStream
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder


@pytest.mark.parametrize("side", [False, True], ids=["", "side tokens"])
@pytest.mark.parametrize("make", SCRIPTS, ids=lambda make: make.__name__)
@targets
def test_same_tokens_as_greedy_whatever_the_proposer(network, greedy_text, target, make, side):
    proposer = Scripted(greedy_text, 97, with_side_tokens(make) if side else make)
    out = generate(target(network), PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy_text[len(PROMPT) :]
    assert sum(s.committed for s in out.stats) == N


@pytest.mark.parametrize("make, passes", [
    (scripts.no_draft, N),
    (scripts.always_wrong, N),
    (scripts.always_right, 1 + math.ceil((N - 1) / 5)),
    (scripts.tree_with_decoys, 1 + math.ceil((N - 1) / 5)),
    (scripts.right_until_third, 1 + math.ceil((N - 1) / 3)),
])  # fmt: skip
@targets
def test_target_passes_are_as_few_as_the_draft_allows(network, greedy_text, target, make, passes):
    out = generate(target(network), PROMPT, Scripted(greedy_text, 97, make), max_new_tokens=N)
    assert len(out.stats) == passes
    assert tokens_per_pass(out.stats) == pytest.approx((N - 1) / (passes - 1))


@targets
@torch.no_grad()
def test_an_end_token_among_accepted_draft_tokens_leaves_the_cache_of_the_text(network, greedy_text, target):
    new, target = greedy_text[len(PROMPT) :], target(network)
    target.eos = (new[3],)
    seq = new_sequence(target, PROMPT, Scripted(greedy_text, 97, scripts.always_right), Greedy(), N)
    while seq.finish_reason is None:
        step(target, [seq])
    assert seq.output_ids == new[:4] and seq.stats[-1].accepted == 3
    assert_holds(seq.cache, seq.ids[:-1], target)


@pytest.mark.parametrize("least", [0, 1, 3, 7])
@pytest.mark.parametrize("make", [scripts.no_draft, scripts.always_right])
def test_no_end_before_the_minimum_length_as_in_transformers(network, least, make):
    eos = network.generate(torch.tensor([PROMPT]), max_new_tokens=3, do_sample=False)[0, -1].item()
    options = dict(max_new_tokens=N, min_new_tokens=least, do_sample=False, eos_token_id=eos, pad_token_id=0)
    text = network.generate(torch.tensor([PROMPT]), **options)[0].tolist()
    target = decoder_target(network, eos=(eos,))
    padded = text + [0] * N  # the script must not run dry
    out = generate(target, PROMPT, Scripted(padded, 97, make), max_new_tokens=N, min_new_tokens=least)
    assert out.ids == text[len(PROMPT) :]


@pytest.mark.parametrize("make", [scripts.no_draft, scripts.always_right])
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


def test_sequences_of_one_step_decode_as_if_alone(network):
    """Three prompts of unequal length, one fed in chunks, with different proposers, in packed forward passes."""
    texts = [network.generate(torch.tensor([p]), max_new_tokens=N, do_sample=False)[0].tolist() for p in UNEQUAL]
    makes = [scripts.tree_with_decoys, scripts.random_chain, with_side_tokens(scripts.right_until_third)]
    proposers = [Scripted(text, 97, make) for text, make in zip(texts, makes, strict=True)]
    seqs = together(decoder_target(network), proposers)
    assert [seq.ids for seq in seqs] == texts
    assert [s.committed for s in seqs[1].stats[:3]] == [0, 0, 1]  # 7 prompt tokens in chunks of 3
    assert all(s.is_prefill for s in seqs[1].stats[:3])
    assert all(seen.tokens for seen in seqs[1].proposer.seen)  # called for commits alone


@pytest.mark.parametrize("make, most", [
    (scripts.always_right, 3),  # a chain is cut
    (with_side_tokens(scripts.no_draft), 1),  # side tokens are fed together or not at all
    (scripts.tree_with_decoys, 3),  # a wide tree is cut, too
])  # fmt: skip
def test_a_chunk_bounds_what_a_step_feeds_draft_tokens_included(network, greedy_text, make, most):
    target = decoder_target(network)
    seq = new_sequence(target, PROMPT, Scripted(greedy_text, 97, make), Greedy(), N)
    seq.num_scheduled_tokens = 3
    while seq.finish_reason is None:
        step(target, [seq])
    assert seq.ids == greedy_text
    assert max(s.num_input_tokens for s in seq.stats if not s.is_prefill) == most


def test_the_proposer_sees_its_tree_again_with_path_logits_and_hidden_states(network, greedy_text):
    by = Scripted(greedy_text, 97, with_side_tokens(scripts.tree_with_decoys))
    by.after = (1, "final")
    generate(decoder_target(network), PROMPT, by, max_new_tokens=N)
    prefill, seen = by.seen[0], by.seen[1]
    assert prefill.path == prefill.tree.tokens == [] and len(prefill.tokens) == 1
    assert [seen.tree.tokens[node] for node in seen.path] == seen.tokens[:-1] and len(seen.tokens) == 5
    assert seen.path == seen.tree.path(seen.path[-1]) != [0, 1, 2, 3]
    count = 1 + len(seen.tree.tokens) + 3  # the root, the nodes, side tokens
    last = seen.scores.logits[1 + seen.path[-1]]
    assert seen.tokens[-1] == last.argmax() and seen.scores.logits.shape == (count, 97)
    assert seen.scores.states["final"].shape == seen.scores.states[1].shape == (count, 32)
    head = network.lm_head.weight
    torch.testing.assert_close(seen.scores.states["final"] @ head.T, seen.scores.logits, rtol=0, atol=1e-12)


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
    assert [seq.ids for seq in together(decoder_target(network), proposers)] == texts
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


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """One token a word, none for spaces: "w5" -> [5]."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("bad, said", [
    (dict(prompt=[]), "the prompt is empty"),
    (dict(prompt=torch.tensor([], dtype=torch.long)), "the prompt is empty"),
    (dict(prompt=[1, 97]), "token id 97 is not in this model's vocabulary of 97"),
    (dict(max_new_tokens=0), "max_new_tokens must be at least 1"),
    (dict(min_new_tokens=9, max_new_tokens=4), "min_new_tokens between 0 and it"),
    (dict(prompt=[1] * 200, max_new_tokens=58), "do not fit the context of 256"),
])  # fmt: skip
@targets
def test_bad_input_is_one_clear_sentence(network, target, bad, said):
    with pytest.raises(ValueError, match=said):
        generate(target(network), **dict(prompt=PROMPT) | bad)


def test_text_without_a_tokenizer_is_refused(network):
    with pytest.raises(TypeError, match="need a tokenizer"):
        TextStream(None)
    with pytest.raises(TypeError, match="no tokenizer"):
        generate(network, "hello")
    with pytest.raises(TypeError, match="need a tokenizer"):
        generate(network, PROMPT, stop="x")


def test_a_text_is_encoded_and_an_empty_one_refused(network, words):
    target = DecoderTarget(Decoder.from_transformers(network), words)
    assert new_sequence(target, "w5 w7", None, None, 4).ids == [5, 7]
    with pytest.raises(ValueError, match="the prompt is empty"):
        generate(target, "   ")


@pytest.mark.parametrize("stop", [None, "{word}"], ids=["", "stop text"])
def test_a_stream_has_shown_the_text_of_the_output_when_generate_returns(network, greedy_text, words, stop):
    target, written = DecoderTarget(Decoder.from_transformers(network), words), []
    stop = stop and f"w{greedy_text[len(PROMPT) + 6]}"
    stream = TextStream(words, written.append, stop)
    proposer = Scripted(greedy_text, 97, scripts.always_right)
    out = generate(target, PROMPT, proposer, max_new_tokens=N, stop=stop, on_tokens=stream)
    assert "".join(written) == out.text and len(written) > 1
    assert out.finish == ("stop" if stop else "length")


def test_a_stream_has_shown_all_of_an_interrupted_text_and_starts_the_next_one_afresh(network, greedy, words):
    """The long stop text makes the stream hold back everything until its end."""
    target, written = DecoderTarget(Decoder.from_transformers(network), words), []
    stream = TextStream(words, written.append, "never " * 99)

    def interrupted(tokens):
        stream(tokens)
        raise KeyboardInterrupt

    interrupted.end = stream.end
    with pytest.raises(KeyboardInterrupt):
        generate(target, PROMPT, max_new_tokens=N, on_tokens=interrupted)
    assert "".join(written) == f"w{greedy[0]}"
    written.clear()
    assert generate(target, PROMPT, max_new_tokens=N, on_tokens=stream).text == "".join(written)


def test_a_stop_text_that_a_draft_token_completes_leaves_no_place_for_the_targets_own(network, greedy_text, greedy):
    tokenizer, proposer = byte_level(), Scripted(greedy_text, 97, scripts.always_right)
    target = DecoderTarget(Decoder.from_transformers(network), tokenizer)
    out = generate(target, PROMPT, proposer, max_new_tokens=N, stop=tokenizer.decode(greedy[1:3]))
    last = out.stats[-1]
    assert out.finish == "stop" and last.accepted == last.committed == 2


@pytest.mark.parametrize("least", [0, 3, N])
@pytest.mark.parametrize("make", [scripts.no_draft, scripts.always_right])
def test_a_stop_text_ends_a_text_below_the_minimum_length_too_as_in_transformers(network, greedy_text, least, make):
    """Only end tokens are held back."""
    tokenizer, limits = byte_level(), dict(max_new_tokens=N, min_new_tokens=least)
    stop = tokenizer.decode(greedy_text[len(PROMPT) :][1:3])
    options = dict(do_sample=False, eos_token_id=96, pad_token_id=0, stop_strings=stop, tokenizer=tokenizer)
    text = network.generate(torch.tensor([PROMPT]), **limits, **options)[0].tolist()
    target, written = DecoderTarget(Decoder.from_transformers(network), tokenizer, eos=(96,)), []
    stream, proposer = TextStream(tokenizer, written.append, stop), Scripted(greedy_text, 97, make)
    out = generate(target, PROMPT, proposer, stop=stop, on_tokens=stream, **limits)
    assert (PROMPT + out.ids, out.finish, len(out.ids)) == (text, "stop", 3)
    assert out.text == "".join(written) == tokenizer.decode(out.ids[:1])


def test_the_text_is_cut_before_a_stop_text_that_an_end_token_completes(network, greedy_text, words):
    end, written = greedy_text[len(PROMPT) + 2], []
    target = DecoderTarget(Decoder.from_transformers(network), words, eos=(end,))
    stream = TextStream(words, written.append, f"w{end}")
    out = generate(target, PROMPT, max_new_tokens=N, stop=f"w{end}", on_tokens=stream)
    assert out.finish == "eos" and f"w{end}" not in out.text and out.text == "".join(written)


@pytest.mark.parametrize("prompt", [
    torch.tensor(PROMPT), torch.tensor([PROMPT]), tuple(PROMPT), [PROMPT], np.array([PROMPT]), list(np.array(PROMPT)),
    [torch.tensor(PROMPT)], {"input_ids": torch.tensor([PROMPT])},
    BatchEncoding({"input_ids": [[0, 0, *PROMPT]], "attention_mask": [[0, 0, *[1] * len(PROMPT)]]}),
    {"input_ids": [[0, *PROMPT]], "attention_mask": torch.tensor([[False, *[True] * len(PROMPT)]])},
], ids=repr)  # fmt: skip
def test_token_ids_may_come_in_whatever_form_tokenizers_return_them(prompt):
    seq = new_sequence(decoder_target(tiny()), prompt, None, None, 4)
    assert seq.ids == PROMPT and all(type(token) is int for token in seq.ids)


@pytest.mark.parametrize("prompt, said", [
    (torch.tensor([[1, 2], [3, 4]]), "one prompt"),
    (["w1 w2", "w3"], "one prompt"),
    ({"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 1]]}, "one prompt"),
    ([1.0, 2.0], "must be integers, not float"),
    ([True, False], "must be integers, not bool"),
    (torch.tensor(1), "not int"),
    (b"w1", "not bytes"),
    (None, "not NoneType"),
    (iter([1]), "not list_iterator"),
    ([{"role": "user", "content": "w1"}, {"role": "user"}], "needs a role and a content"),
])  # fmt: skip
def test_what_is_no_prompt_is_refused_in_a_sentence(prompt, said):
    with pytest.raises(TypeError, match=said):
        new_sequence(decoder_target(tiny()), prompt, None, None, 4)


@pytest.mark.parametrize("wrong, said", [
    (dict(proposer=PromptLookup), "not the class PromptLookup"),
    (dict(acceptance=Sampling), "not the class Sampling"),
    (dict(acceptance=PromptLookup()), "a rule such as Greedy"),
    (dict(generator=0), "must be a torch.Generator, not int"),
    (dict(max_new_tokens="3"), "must be an integer, not '3'"),
    (dict(min_new_tokens=True), "must be an integer, not True"),
    (dict(stop=5), "a text or a list of texts"),
    (dict(on_tokens=TextStream), "a function or a TextStream"),
])  # fmt: skip
def test_an_argument_of_the_wrong_kind_is_refused_in_a_sentence(network, wrong, said):
    with pytest.raises(TypeError, match=said):
        generate(network, PROMPT, **wrong)


def test_messages_need_a_chat_template(network, words):
    target = DecoderTarget(Decoder.from_transformers(network), words)
    with pytest.raises(ValueError, match="this model's tokenizer has no chat template: pass the prompt as text"):
        generate(target, [{"role": "user", "content": "w5 w6"}])


def test_messages_go_through_the_tokenizers_chat_template(words):
    words.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"  # noqa: E501
    )
    target = decoder_target(tiny())
    target.tokenizer = words
    seq = new_sequence(target, [{"role": "user", "content": "w5 w6"}], None, None, 4)
    assert seq.ids == [5, 6, 9]
