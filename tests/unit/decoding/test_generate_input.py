"""What `generate` refuses in one sentence, what just fits, and the text it shows (lessons 01, 06)."""

import numpy as np
import pytest
import torch
from support import proposers as scripts
from support.oracle import PROMPT, N
from support.proposers import Scripted, with_side_tokens
from support.small_tokenizers import byte_level
from support.targets import Tight, decoder_target, targets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerFast

from lessons_lib import DraftModel, Jacobi, Lookahead, PromptLookup, Sampling
from lessons_lib.decoding.generate import generate, new_sequence
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.targets import DecoderTarget, Unsupported, as_target
from lessons_lib.decoding.text import StoppedText, TextStream
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """One token a word, none for spaces: "w5" -> [5]."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("bad, said", [
    (dict(prompt=[]), "the prompt is empty"),
    (dict(prompt=[1, 97]), "token id 97 is not in this model's vocabulary of 97"),
    (dict(max_new_tokens=0), "max_new_tokens must be at least 1"),
    (dict(max_new_tokens=-3), "max_new_tokens must be at least 1"),
    (dict(min_new_tokens=9, max_new_tokens=4), "min_new_tokens between 0 and it"),
    (dict(prompt=[1] * 300), "do not fit the context of 256"),
    (dict(prompt=[1] * 200, max_new_tokens=58), "do not fit the context of 256"),
])  # fmt: skip
@targets
def test_bad_input_is_one_clear_sentence(network, target, bad, said):
    with pytest.raises(ValueError, match=said):
        generate(target(network), **dict(prompt=PROMPT) | bad)


@pytest.mark.parametrize("make", [scripts.tree_with_decoys, with_side_tokens(scripts.tree_with_decoys)])
@targets
def test_guesses_at_the_end_of_the_context_are_cut_to_what_fits(target, make):
    network = tiny(context=24)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)[0].tolist()
    out = generate(target(network), PROMPT, Scripted(text, 97, make), max_new_tokens=20)
    assert PROMPT + out.ids == text


def test_guesses_that_a_static_cache_cannot_hold_are_dropped(network, greedy_text):
    out = generate(
        Tight(network, len(PROMPT) + N + 1),
        PROMPT,
        Scripted(greedy_text, 97, scripts.tree_with_decoys),
        max_new_tokens=N,
    )
    assert PROMPT + out.ids == greedy_text


def test_a_text_may_fill_the_context_to_the_last_position(network):
    out = generate(decoder_target(network), [1] * 250, max_new_tokens=7)
    assert len(out.ids) == 7


def test_text_without_a_tokenizer_is_refused(network):
    with pytest.raises(TypeError, match="no tokenizer"):
        generate(network, "hello")
    with pytest.raises(TypeError, match="need a tokenizer"):
        generate(network, PROMPT, stop="x")


@pytest.mark.parametrize("prompt", ["", "   ", [], torch.tensor([], dtype=torch.long)], ids=repr)
@targets
def test_an_empty_prompt_is_refused_as_text_too(network, words, target, prompt):
    target = target(network)
    target.tokenizer = words
    assert len(generate(target, "w5", max_new_tokens=2).ids) == 2
    with pytest.raises(ValueError, match="the prompt is empty; give at least one token"):
        generate(target, prompt, max_new_tokens=2)


def test_a_proposer_whose_needs_are_not_offered_is_refused(network):
    class Demanding(Proposer):
        needs = frozenset({"wings"})

    with pytest.raises(Unsupported, match="Demanding needs wings, which TransformersTarget does not offer"):
        generate(network, PROMPT, Demanding())


def test_a_stream_without_a_tokenizer_is_refused():
    with pytest.raises(TypeError, match="need a tokenizer"):
        TextStream(None)


def test_what_cannot_decode_is_refused():
    with pytest.raises(TypeError, match="str cannot decode"):
        as_target("smollm2-135m")


@pytest.mark.parametrize("stop", [None, "{word}"], ids=["", "stop text"])
def test_a_stream_has_shown_the_text_of_the_output_when_generate_returns(network, greedy_text, words, stop):
    target, written = DecoderTarget(Decoder.from_transformers(network), words), []
    stop = stop and f"w{greedy_text[len(PROMPT) + 6]}"
    stream = TextStream(words, written.append, stop)
    proposer = Scripted(greedy_text, 97, scripts.always_right)
    out = generate(target, PROMPT, proposer, max_new_tokens=N, stop=stop, on_tokens=stream)
    assert "".join(written) == out.text and len(written) > 1
    assert out.finish == ("stop" if stop else "length")


@pytest.mark.parametrize("least", [0, 3, 4, 5, 8, 12, N])
@pytest.mark.parametrize("make", [scripts.silent, scripts.always_right])
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


def test_the_text_in_which_a_stop_text_was_looked_for_is_not_decoded_again(network):
    """As many calls of the tokenizer as somebody needs who reads the new tokens once."""
    tokenizer, calls = byte_level(), []
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **options: calls.append(ids) or decode(ids, **options)
    target = DecoderTarget(Decoder.from_transformers(network), tokenizer)
    out, needed = generate(target, PROMPT, max_new_tokens=N, stop="never"), len(calls)
    text = StoppedText(tokenizer, "never")
    calls.clear()
    assert "".join(map(text.add, out.ids)) + text.rest() == out.text and needed == len(calls)


def test_the_text_is_cut_before_a_stop_text_that_an_end_token_completes(network, greedy_text, words):
    end, written = greedy_text[len(PROMPT) + 2], []
    target = DecoderTarget(Decoder.from_transformers(network), words, eos=(end,))
    stream = TextStream(words, written.append, f"w{end}")
    out = generate(target, PROMPT, max_new_tokens=N, stop=f"w{end}", on_tokens=stream)
    assert out.finish == "eos" and f"w{end}" not in out.text and out.text == "".join(written)


@pytest.mark.parametrize("prompt", [
    torch.tensor(PROMPT), torch.tensor([PROMPT]), tuple(PROMPT), [PROMPT], np.array(PROMPT), np.array([PROMPT]),
    list(np.array(PROMPT)), [np.array(PROMPT)], [torch.tensor(PROMPT)], list(torch.tensor(PROMPT)),
    {"input_ids": PROMPT}, {"input_ids": torch.tensor([PROMPT])},
    BatchEncoding({"input_ids": [[0, 0, *PROMPT]], "attention_mask": [[0, 0, *[1] * len(PROMPT)]]}),
    {"input_ids": [[0, *PROMPT]], "attention_mask": torch.tensor([[False, *[True] * len(PROMPT)]])},
], ids=repr)  # fmt: skip
def test_token_ids_may_come_in_whatever_form_tokenizers_return_them(prompt):
    row = new_sequence(decoder_target(tiny()), prompt, None, None, 4)
    assert row.ids == PROMPT and all(type(token) is int for token in row.ids)


@pytest.mark.parametrize("prompt, said", [
    (torch.tensor([[1, 2], [3, 4]]), "generate continues one prompt; call it once for each"),
    (torch.tensor([[[1, 2]]]), "generate continues one prompt"),
    (np.array([[1], [2]]), "generate continues one prompt"),
    ([[1, 2], [3]], "generate continues one prompt"),
    (["w1 w2", "w3"], "generate continues one prompt"),
    ({"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 1]]}, "generate continues one prompt"),
    ([1.0, 2.0], "token ids must be integers, not float"),
    (torch.tensor([1.0]), "token ids must be integers, not float"),
    ([True, False], "token ids must be integers, not bool"),
    ([1, None], "token ids must be integers, not NoneType"),
    (torch.tensor(1), "a prompt is a text, token ids or a list of messages, not int"),
    (b"w1", "a prompt is a text, token ids or a list of messages, not bytes"),
    (None, "a prompt is a text, token ids or a list of messages, not NoneType"),
    (iter([1]), "a prompt is a text, token ids or a list of messages, not list_iterator"),
    ([torch.tensor([1, 2]), torch.tensor([3])], "generate continues one prompt"),
    ([{"content": "w1"}], "each message needs a role and a content"),
    ([{"role": "user", "content": "w1"}, {"role": "user"}], "each message needs a role and a content"),
    ({"role": "user", "content": "w1"}, "a prompt is a text, token ids or a list of messages, not dict"),
])  # fmt: skip
def test_what_is_no_prompt_is_refused_in_a_sentence(prompt, said):
    with pytest.raises(TypeError, match=said):
        new_sequence(decoder_target(tiny()), prompt, None, None, 4)


@pytest.mark.parametrize("wrong, said", [
    (dict(proposer=PromptLookup), "proposer must be one such as PromptLookup\\(\\), not the class PromptLookup"),
    (dict(proposer=Sampling()), "proposer must be one such as PromptLookup\\(\\), not Sampling"),
    (dict(acceptance=Sampling), "acceptance must be a rule such as Greedy.*, not the class Sampling"),
    (dict(acceptance=PromptLookup()), "acceptance must be a rule such as Greedy.*, not PromptLookup"),
    (dict(generator=0), "generator must be a torch.Generator, not int; for a seed use torch.Generator"),
    (dict(max_new_tokens=3.0), "max_new_tokens must be an integer, not 3.0"),
    (dict(max_new_tokens="3"), "max_new_tokens must be an integer, not '3'"),
    (dict(max_new_tokens=None), "max_new_tokens must be an integer, not None"),
    (dict(min_new_tokens=True), "min_new_tokens must be an integer, not True"),
    (dict(stop=5), "stop must be a text or a list of texts, not 5"),
    (dict(on_tokens=[]), "on_tokens must be a function or a TextStream"),
    (dict(on_tokens=TextStream), "on_tokens must be a function or a TextStream"),
])  # fmt: skip
def test_an_argument_of_the_wrong_kind_is_refused_in_a_sentence(network, wrong, said):
    with pytest.raises(TypeError, match=said):
        generate(network, PROMPT, **wrong)


@pytest.mark.parametrize("wrong, said", [
    (lambda network: DraftModel(network, 2.5), "gamma must be an integer, not 2.5"),
    (lambda network: DraftModel(network, children=(2.0,)), "children must be an integer, not 2.0"),
    (lambda network: PromptLookup(2.5), "num_tokens must be an integer, not 2.5"),
    (lambda network: PromptLookup(length=Constant(2)), "length must be a function that makes .* not Constant"),
    (lambda network: PromptLookup(length=5), "length must be a function .* such as lambda: Heuristic\\(5\\), not int"),
    (lambda network: PromptLookup(length=0), "length must be a function .* not int"),
    (lambda network: PromptLookup(length=lambda: 5), "length must be a function .* not int"),
    (lambda network: Jacobi(2.5), "n must be an integer, not 2.5"),
    (lambda network: Lookahead(W="5"), "W must be an integer, not '5'"),
])  # fmt: skip
def test_a_size_or_a_schedule_of_the_wrong_kind_is_refused_in_a_sentence(network, wrong, said):
    with pytest.raises(TypeError, match=said):
        wrong(network)


def test_a_prompt_of_one_token_may_be_a_tensor_too():
    assert new_sequence(decoder_target(tiny()), torch.tensor([5]), None, None, 4).ids == [5]


def test_a_text_may_end_at_once_unless_somebody_wants_it_longer():
    row = new_sequence(decoder_target(tiny()), PROMPT, None, None, 4)
    assert (row.max_tokens, row.stopping.min_new_tokens) == (4, 0)


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
    row = new_sequence(target, [{"role": "user", "content": "w5 w6"}], None, None, 4)
    assert row.ids == [5, 6, 9]
